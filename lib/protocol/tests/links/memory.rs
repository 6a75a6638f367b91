//! Memory that a target offers with its preface, well meant and not.

use std::{
    fs::File,
    io::Write,
    os::{
        fd::OwnedFd,
        unix::{fs::FileExt, net::UnixStream},
    },
    path::Path,
    thread,
    time::{Duration, Instant},
};

use foretoken_pipe::{CAPACITY, Pipes, offer, send};
use foretoken_protocol::{
    Address,
    link::{LinkOptions, ServerEvent, decode_draft_frame},
};
use tempfile::TempDir;

use crate::{
    behaviour::{open, outcome, received},
    carrier::{Endpoint, LONG, dial, eager, serve, wait, wait_up, welcome},
    strangers::{FRAME, MEMORY, PREFACE, header, introduction, with_endpoint},
};

/// A target that has offered memory, introduced itself and taken the memory in use.
fn joined(path: &Path) -> (UnixStream, Pipes, OwnedFd) {
    let mut stream = UnixStream::connect(path).expect("it listens");
    let (mut pipes, file) = offer().expect("memory");
    send(&stream, PREFACE, &file).expect("sends");
    let rest = [introduction(), header(MEMORY, 0)].concat();
    stream.write_all(&rest).expect("sends");
    // The endpoint introduces itself there.
    let begun = Instant::now();
    let mut first = vec![0; 4096];
    let length = loop {
        match pipes.reader.read(&mut first).expect("keeps to the rules") {
            0 => assert!(begun.elapsed() < LONG, "nothing comes"),
            length => break length,
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(first[0], FRAME);
    let frame = decode_draft_frame(first[5..length].to_vec().into()).expect("a frame");
    assert!(frame.welcome.is_some());
    (stream, pipes, file)
}

fn end(endpoint: &Endpoint) -> String {
    wait(&endpoint.events, |event| match event {
        ServerEvent::Down { reason, .. } => Some(reason),
        _ => None,
    })
}

#[test]
fn a_frame_that_no_ring_has_room_for_goes_through_in_parts() {
    // With beats whose sender looks up from the frame, and with nothing else that wakes anybody.
    for beat in [Duration::from_millis(10), Duration::from_secs(3600)] {
        let options = LinkOptions { beat, ..eager() };
        let folder = TempDir::new().expect("a folder");
        let address = Address::Unix(folder.path().join("link"));
        let endpoint = serve(&address, welcome(), options);
        let target = dial(&address, crate::carrier::hello(), options);
        wait_up(&target);
        target.link.send(vec![open(1, 1_000_000)]).expect("is up");
        assert!(received(&endpoint, 1) == [open(1, 1_000_000)]);
        target.link.send(vec![outcome(1, 0)]).expect("is up");
        assert_eq!(received(&endpoint, 1), [outcome(1, 0)]);
    }
}

#[test]
fn what_breaks_the_rules_of_memory_ends_its_link() {
    // Where the target's ring begins: what was written to it, and at a distance what was read.
    let claim = |file: OwnedFd, count: u64| {
        let file = File::from(file);
        file.write_all_at(&count.to_ne_bytes(), 0).expect("writes");
    };
    with_endpoint(|path, endpoint| {
        let (mut stream, _pipes, file) = joined(path);
        claim(file, CAPACITY as u64 + 1);
        stream.write_all(&[0]).expect("wakes it");
        let reason = end(endpoint);
        assert!(reason.contains("rules of a shared ring"), "{reason}");
    });
    with_endpoint(|path, endpoint| {
        let (mut stream, mut pipes, _file) = joined(path);
        pipes.writer.write(&header(9, 0)).expect("there is room");
        stream.write_all(&[0]).expect("wakes it");
        let reason = end(endpoint);
        assert!(reason.contains("kind 9"), "{reason}");
    });
    with_endpoint(|path, endpoint| {
        // It was taken in use before.
        let (mut stream, mut pipes, _file) = joined(path);
        pipes
            .writer
            .write(&header(MEMORY, 0))
            .expect("there is room");
        stream.write_all(&[0]).expect("wakes it");
        let reason = end(endpoint);
        assert!(reason.contains("memory that it does not share"), "{reason}");
    });
    with_endpoint(|path, endpoint| {
        // There is none.
        let mut stream = UnixStream::connect(path).expect("it listens");
        let said = [PREFACE, &introduction(), &header(MEMORY, 0)].concat();
        stream.write_all(&said).expect("it listens");
        let reason = end(endpoint);
        assert!(reason.contains("memory that it does not share"), "{reason}");
    });
}

#[test]
fn a_file_that_is_no_memory_is_passed_over() {
    with_endpoint(|path, endpoint| {
        let mut stream = UnixStream::connect(path).expect("it listens");
        let file = File::open(path.parent().expect("a folder")).expect("opens");
        send(&stream, PREFACE, &file.into()).expect("sends");
        stream.write_all(&introduction()).expect("it listens");
        wait(&endpoint.events, |event| {
            matches!(event, ServerEvent::Up { .. }).then_some(())
        });
    });
}

#[test]
fn a_target_that_goes_has_said_what_it_wrote_before() {
    with_endpoint(|path, endpoint| {
        let (stream, mut pipes, _file) = joined(path);
        pipes
            .writer
            .write(&[header(FRAME, 100), vec![0; 50]].concat())
            .expect("there is room");
        drop(stream);
        let reason = end(endpoint);
        assert!(reason.contains("middle of a frame"), "{reason}");
    });
}
