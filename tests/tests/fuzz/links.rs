//! Whatever comes over a Unix socket ends with its connection.

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::mpsc::channel,
    time::Duration,
};

use foretoken_protocol::{
    Address, Listener,
    link::{
        Hello, LinkEvent, LinkOptions, ServerEvent, TargetFrame, Terms, Transport,
        TransportOptions, VERSION, Welcome, encode_target_frame,
    },
};
use tokio_util::sync::CancellationToken;

use crate::{mutate::Fuzzer, target_frame};

/// A frame as it is sent over a Unix socket.
fn sent(frame: &TargetFrame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_target_frame(frame, &mut bytes);
    let length = (bytes.len() as u32).to_le_bytes();
    [&[0], length.as_slice(), &bytes].concat()
}

#[test]
fn any_bytes_on_a_unix_socket_end_their_link_and_no_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("link");
    let address = Address::Unix(path.clone());
    let transport = Transport::start(TransportOptions::default()).expect("a thread");
    let (heard, events) = channel();
    let terms = Terms::new(Welcome::default(), LinkOptions::default());
    let stop = CancellationToken::new();
    let listener = Listener::bind(&address).expect("a free path");
    let server = transport.serve(listener, terms, &stop, move |event| drop(heard.send(event)));
    let _server = server.expect("serves");
    let introduction = TargetFrame {
        hello: Some((VERSION, Hello::default())),
        ..TargetFrame::default()
    };
    let greeting = [b"foretoken link 1".as_slice(), &sent(&introduction)].concat();
    let mut frame = target_frame();
    frame.hello = None;
    let sample = [greeting.clone(), sent(&frame), sent(&frame)].concat();
    let (mut ups, mut downs, mut messages) = (0, 0, 0);
    Fuzzer::from_environment("Unix socket").run(&[sample, greeting], |bytes| {
        let mut stream = UnixStream::connect(&path).expect("it listens");
        let patience = Some(Duration::from_secs(30));
        stream.set_read_timeout(patience).expect("a socket option");
        // It may end the connection before it has all.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer);
        let waits = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!waits, "the connection does not end");
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
    let (met, is_met) = channel();
    let _link = transport.dial(
        address,
        Hello::default(),
        LinkOptions::default(),
        &stop,
        move |event| {
            drop(met.send(event));
        },
    );
    let event = is_met.recv_timeout(Duration::from_secs(30));
    assert!(matches!(event, Ok(LinkEvent::Up(_))), "{event:?}");
}
