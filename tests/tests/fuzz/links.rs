//! Whatever comes over a Unix socket ends with its connection.

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use foretoken_protocol::{
    Address, Listener,
    link::{
        DraftFrame, Hello, LinkEvent, LinkOptions, LinkServer, ServerEvent, TargetFrame, Terms,
        Transport, TransportOptions, VERSION, Welcome, encode_draft_frame, encode_target_frame,
    },
};
use tokio_util::sync::CancellationToken;

use crate::{draft_frame, mutate::Fuzzer, target_frame};

/// A frame as it is sent over a Unix socket.
fn sent<F>(frame: &F, encode: impl Fn(&F, &mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes);
    let length = (bytes.len() as u32).to_le_bytes();
    [&[0], length.as_slice(), &bytes].concat()
}

/// Says all of it, and nothing after it; the peer is to end the connection.
fn say(stream: &mut UnixStream, bytes: &[u8]) {
    let patience = Some(Duration::from_secs(30));
    stream.set_read_timeout(patience).expect("a socket option");
    // It may end the connection before it has all.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    let waits = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!waits, "the connection does not end");
}

/// An endpoint, and what it hears.
fn serve(transport: &Transport, address: &Address) -> (LinkServer, Receiver<ServerEvent>) {
    let (heard, events) = channel();
    let terms = Terms::new(Welcome::default(), LinkOptions::default());
    let listener = Listener::bind(address).expect("a free path");
    let stop = CancellationToken::new();
    let server = transport.serve(listener, terms, &stop, move |event| drop(heard.send(event)));
    (server.expect("serves"), events)
}

/// That a target that dials this address meets an endpoint.
fn meets(transport: &Transport, address: &Address) {
    let (met, is_met) = channel();
    let _link = transport.dial(
        address.clone(),
        Hello::default(),
        LinkOptions::default(),
        &CancellationToken::new(),
        move |event| drop(met.send(event)),
    );
    let event = is_met.recv_timeout(Duration::from_secs(30));
    assert!(matches!(event, Ok(LinkEvent::Up(_))), "{event:?}");
}

#[test]
fn any_bytes_on_a_unix_socket_end_their_link_and_no_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("link");
    let address = Address::Unix(path.clone());
    let transport = Transport::start(TransportOptions::default()).expect("a thread");
    let (_server, events) = serve(&transport, &address);
    let introduction = TargetFrame {
        hello: Some((VERSION, Hello::default())),
        ..TargetFrame::default()
    };
    let sent = |frame| sent(frame, encode_target_frame);
    let greeting = [b"foretoken link 1".as_slice(), &sent(&introduction)].concat();
    let mut frame = target_frame();
    frame.hello = None;
    let sample = [greeting.clone(), sent(&frame), sent(&frame)].concat();
    let (mut ups, mut downs, mut messages) = (0, 0, 0);
    Fuzzer::from_environment("Unix socket").run(&[sample, greeting], |bytes| {
        say(&mut UnixStream::connect(&path).expect("it listens"), bytes);
        for event in events.try_iter() {
            match event {
                ServerEvent::Up { .. } => ups += 1,
                ServerEvent::Down { .. } => downs += 1,
                ServerEvent::Messages { .. } => messages += 1,
                ServerEvent::Malformed { .. } | ServerEvent::Refused { .. } => {}
            }
        }
    });
    assert!(
        ups > 0 && messages > 0,
        "no input got far: {ups}, {messages}"
    );
    assert_eq!(ups, downs, "each link is gone with its connection");
    meets(&transport, &address);
}

#[test]
fn any_bytes_of_an_endpoint_end_their_link_and_no_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [address, honest] = ["link", "honest"].map(|name| Address::Unix(folder.path().join(name)));
    let listener = UnixListener::bind(folder.path().join("link")).expect("a free path");
    let transport = Transport::start(TransportOptions::default()).expect("a thread");
    let introduction = DraftFrame {
        welcome: Some((VERSION, Welcome::default())),
        ..DraftFrame::default()
    };
    let sent = |frame| sent(frame, encode_draft_frame);
    let greeting = sent(&introduction);
    let mut frame = draft_frame();
    frame.welcome = None;
    let sample = [greeting.clone(), sent(&frame), sent(&frame)].concat();
    // Each dials once.
    let options = LinkOptions {
        backoff_min: Duration::from_secs(600),
        backoff_max: Duration::from_secs(600),
        ..LinkOptions::default()
    };
    let (mut ups, mut downs, mut messages) = (0, 0, 0);
    Fuzzer::from_environment("endpoint").run(&[sample, greeting], |bytes| {
        let (heard, events) = channel();
        let stop = CancellationToken::new();
        let heard = move |event| drop(heard.send(event));
        let link = transport.dial(address.clone(), Hello::default(), options, &stop, heard);
        let (mut stream, _) = listener.accept().expect("it is dialled");
        say(&mut stream, bytes);
        drop(link);
        // The events end with the link.
        for event in events {
            match event {
                LinkEvent::Up(_) => ups += 1,
                LinkEvent::Down(_) => downs += 1,
                LinkEvent::Messages(_) => messages += 1,
                _ => {}
            }
        }
    });
    assert!(
        ups > 0 && messages > 0,
        "no input got far: {ups}, {messages}"
    );
    assert!(downs >= ups, "{ups} links, of which {downs} ended");
    let (_server, _) = serve(&transport, &honest);
    meets(&transport, &honest);
}
