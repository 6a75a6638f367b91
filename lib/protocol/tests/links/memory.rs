//! Memory that a target offers with its preface, well meant and not.

use std::{
    fs::File,
    io::{Read, Write},
    os::{
        fd::OwnedFd,
        unix::{
            fs::FileExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use foretoken_pipe::{CAPACITY, Pipes, Reader, offer, receive, send};
use foretoken_protocol::{
    Address, Listener,
    link::{
        DraftFrame, LinkOptions, ServerEvent, Terms, Transport, TransportOptions, VERSION,
        decode_draft_frame, decode_target_frame, encode_draft_frame,
    },
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::{
    behaviour::{open, outcome, received, wait_link},
    carrier::{LONG, dial, eager, hello, serve, wait_up, welcome},
    strangers::{FRAME, PREFACE, end, header, introduction, with_endpoint},
};

/// The kind that says that everything else comes through memory.
const MEMORY: u8 = 2;

/// A target that has offered memory, introduced itself and taken the memory in use.
fn joined(path: &Path) -> (UnixStream, Pipes, OwnedFd) {
    let mut stream = UnixStream::connect(path).expect("it listens");
    let (mut pipes, file) = offer().expect("memory");
    send(&stream, PREFACE, &file).expect("sends");
    let rest = [introduction(), header(MEMORY, 0)].concat();
    stream.write_all(&rest).expect("sends");
    // The endpoint introduces itself there.
    let frame = decode_draft_frame(next_frame(&mut pipes.reader).into()).expect("a frame");
    assert!(frame.welcome.is_some());
    (stream, pipes, file)
}

/// The next frame out of memory.
fn next_frame(reader: &mut Reader) -> Vec<u8> {
    let mut take = |length| {
        let begun = Instant::now();
        let mut taken = Vec::new();
        while taken.len() < length {
            let mut part = vec![0; length - taken.len()];
            let read = reader.read(&mut part).expect("keeps to the rules");
            taken.extend_from_slice(&part[..read]);
            assert!(begun.elapsed() < LONG, "nothing comes");
            thread::sleep(Duration::from_millis(1));
        }
        taken
    };
    let header = take(5);
    assert_eq!(header[0], FRAME);
    let length = header[1..].try_into().expect("four bytes");
    take(u32::from_le_bytes(length) as usize)
}

#[test]
fn a_frame_that_no_ring_has_room_for_goes_through_in_parts() {
    // With beats whose sender looks up from the frame, and with nothing else that wakes anybody.
    for beat in [Duration::from_millis(10), Duration::from_secs(3600)] {
        let options = LinkOptions { beat, ..eager() };
        let folder = TempDir::new().expect("a folder");
        let address = Address::Unix(folder.path().join("link"));
        let endpoint = serve(&address, welcome(), options);
        let target = dial(&address, hello(), options);
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
        // What it says to have read, it cannot have.
        let (_stream, _pipes, file) = joined(path);
        let file = File::from(file);
        file.write_all_at(&(1_u64 << 32).to_ne_bytes(), 4 * 128)
            .expect("writes");
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
        wait_link(endpoint);
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

#[test]
fn a_target_takes_in_use_what_its_endpoint_does() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("link");
    let listener = UnixListener::bind(&path).expect("binds");
    let target = dial(&Address::Unix(path), hello(), eager());
    let (mut stream, _) = listener.accept().expect("the target comes");
    let mut preface = [0; 16];
    let (length, file) = receive(&stream, &mut preface).expect("it begins");
    assert_eq!(&preface[..length], PREFACE);
    let mut pipes = foretoken_pipe::open(&file.expect("an offer")).expect("opens");
    stream.write_all(&header(MEMORY, 0)).expect("it listens");
    let welcome = DraftFrame {
        welcome: Some((VERSION, welcome())),
        ..DraftFrame::default()
    };
    let mut bytes = Vec::new();
    encode_draft_frame(&welcome, &mut bytes);
    let said = [header(FRAME, bytes.len()), bytes].concat();
    pipes.writer.write(&said).expect("there is room");
    if pipes.writer.must_wake() {
        stream.write_all(&[0]).expect("wakes it");
    }
    wait_up(&target);
    // The last that comes over the socket, but for calls.
    let mut over_socket = [introduction(), header(MEMORY, 0)].concat();
    stream.read_exact(&mut over_socket).expect("as long");
    assert_eq!(over_socket, [introduction(), header(MEMORY, 0)].concat());
    target.link.send(vec![outcome(1, 0)]).expect("is up");
    let frame = loop {
        let bytes = next_frame(&mut pipes.reader);
        let frame = decode_target_frame(bytes.into()).expect("a frame");
        if !frame.messages.is_empty() {
            break frame;
        }
    };
    assert_eq!(frame.messages, [outcome(1, 0)]);
}

#[test]
fn a_target_that_never_stops_keeps_no_engine_from_its_work_and_is_sent_away() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("link");
    let transport = Transport::start(TransportOptions::default()).expect("a thread");
    let (postbox, mailbox) = transport.mailbox();
    let stop = CancellationToken::new();
    let listener = Listener::bind(&Address::Unix(path.clone())).expect("binds");
    let terms = Terms::new(welcome(), eager());
    let on_event = move |event| drop(postbox.post(event));
    let server = transport.serve(listener, terms, &stop, on_event);
    let ended = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&ended);
    let flood = thread::spawn(move || {
        let (mut stream, mut pipes, _file) = joined(&path);
        let frames = header(FRAME, 0).repeat(1000);
        let mut at = 0;
        while !over.load(Ordering::Relaxed) {
            let written = pipes.writer.write(&frames[at % frames.len()..]);
            at += written.expect("keeps to the rules");
            if pipes.writer.must_wake() {
                // The endpoint may have ended the link.
                let _ = stream.write_all(&[0]);
            }
        }
    });
    while !matches!(mailbox.recv_timeout(LONG), Some(ServerEvent::Up { .. })) {}
    let begun = Instant::now();
    let event = loop {
        match mailbox.try_recv() {
            Some(event) => break event,
            None => mailbox.send(),
        }
        assert!(begun.elapsed() < LONG, "it may go on");
    };
    let ServerEvent::Down { reason, .. } = event else {
        panic!("{event:?}");
    };
    assert!(reason.contains("frame after frame"), "{reason}");
    stop.cancel();
    drop(server);
    ended.store(true, Ordering::Relaxed);
    flood.join().expect("ends");
}
