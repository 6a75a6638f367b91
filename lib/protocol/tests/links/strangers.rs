//! What comes over a Unix socket and is no link.

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
};

use foretoken_protocol::{
    Address,
    link::{LinkEvent, ServerEvent, TargetFrame, VERSION, encode_target_frame},
};
use tempfile::TempDir;

use crate::{
    behaviour::wait_link,
    carrier::{Endpoint, dial, eager, hello, serve, wait, wait_up, welcome},
};

/// As targets begin.
pub(crate) const PREFACE: &[u8] = b"foretoken link 1";
/// Kinds of what follows.
pub(crate) const FRAME: u8 = 0;
const END: u8 = 3;

/// What is sent with `kind` and says that it has `length` bytes.
pub(crate) fn header(kind: u8, length: usize) -> Vec<u8> {
    let length = (length as u32).to_le_bytes();
    [&[kind], length.as_slice()].concat()
}

pub(crate) fn introduction() -> Vec<u8> {
    let frame = TargetFrame {
        hello: Some((VERSION, hello())),
        ..TargetFrame::default()
    };
    let mut bytes = Vec::new();
    encode_target_frame(&frame, &mut bytes);
    [header(FRAME, bytes.len()), bytes].concat()
}

/// What the endpoint at `path` answers to `said`, up to the end of the connection.
fn answer(path: &Path, said: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(path).expect("it listens");
    // It may have heard enough before the last byte.
    let _ = stream.write_all(said);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Why the endpoint's link ended.
pub(crate) fn end(endpoint: &Endpoint) -> String {
    wait(&endpoint.events, |event| match event {
        ServerEvent::Down { reason, .. } => Some(reason),
        _ => None,
    })
}

pub(crate) fn with_endpoint(test: impl Fn(&Path, &Endpoint)) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("link");
    let endpoint = serve(&Address::Unix(path.clone()), welcome(), eager());
    test(&path, &endpoint);
    // Whatever came, targets are served.
    let target = dial(endpoint.server.address(), hello(), eager());
    wait_up(&target);
}

#[test]
fn whoever_is_no_target_is_sent_away_without_an_answer() {
    // All that is wrong with it is how it begins.
    let later = [b"foretoken link 2", introduction().as_slice()].concat();
    with_endpoint(|path, endpoint| {
        for said in [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"foretoken link 2 and more",
            &later,
        ] {
            assert_eq!(answer(path, said), b"", "{}", said.escape_ascii());
        }
        // Or leaves without a word.
        drop(UnixStream::connect(path).expect("it listens"));
        assert!(endpoint.events.try_recv().is_err());
    });
}

#[test]
fn a_target_that_begins_with_anything_but_an_introduction_is_told_so() {
    with_endpoint(|path, endpoint| {
        let said = [PREFACE, &header(FRAME, 0)].concat();
        let reason = b"the target did not introduce itself";
        let end = [header(END, reason.len()), reason.to_vec()].concat();
        assert_eq!(answer(path, &said), end);
        assert!(endpoint.events.try_recv().is_err());
    });
}

#[test]
fn what_no_frame_can_be_ends_the_link_and_is_never_waited_for() {
    let limit = eager().max_frame;
    for (harm, word) in [
        (header(FRAME, limit + 1), "bytes, 4194304 are allowed"),
        (header(9, 0), "kind 9"),
        (
            [header(FRAME, 2), vec![0, 0]].concat(),
            "malformed at byte 0",
        ),
    ] {
        with_endpoint(|path, endpoint| {
            let said = [PREFACE, &introduction(), &harm].concat();
            answer(path, &said);
            let reason = end(endpoint);
            assert!(reason.contains(word), "{reason}");
        });
    }
}

#[test]
fn a_target_that_goes_in_the_middle_of_a_frame_is_gone() {
    with_endpoint(|path, endpoint| {
        let mut stream = UnixStream::connect(path).expect("it listens");
        let said = [PREFACE, &introduction(), &header(FRAME, 100), &[0; 50]].concat();
        stream.write_all(&said).expect("it listens");
        wait_link(endpoint);
        stream.shutdown(Shutdown::Write).expect("it listens");
        let reason = end(endpoint);
        assert!(reason.contains("middle of a frame"), "{reason}");
    });
}

#[test]
fn a_target_that_finds_something_else_says_what_it_found() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("other");
    let listener = UnixListener::bind(&path).expect("binds");
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a target comes");
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n")
            .expect("it listens");
    });
    let target = dial(&Address::Unix(path), hello(), eager());
    let reason = wait(&target.events, |event| match event {
        LinkEvent::Down(reason) => Some(reason),
        _ => None,
    });
    other.join().expect("ends");
    assert!(reason.contains("kind 72"), "{reason}");
}
