//! Pipes between two ends that have nothing in common but a socket.
#![cfg(target_os = "linux")]
#![expect(clippy::expect_used, reason = "what tests are made of may fail them")]

use std::{
    fs::File,
    io::{Read, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::FileExt, net::UnixStream},
    },
    sync::mpsc::channel,
    thread,
    time::Duration,
};

use foretoken_pipe::{Broken, CAPACITY, Pipes, offer, open, receive, send};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// Far longer than anything takes.
const LONG: Duration = Duration::from_secs(30);

/// Both ends, in two hands, with the socket that joined them and the file.
fn joined() -> (Pipes, Pipes, UnixStream, UnixStream, OwnedFd) {
    let (here, there) = UnixStream::pair().expect("a pair");
    let (pipes, file) = offer().expect("memory");
    assert_eq!(send(&here, b"take this", &file).expect("sends"), 9);
    let mut buffer = [0; 16];
    let (len, got) = receive(&there, &mut buffer).expect("receives");
    assert_eq!(&buffer[..len], b"take this");
    let other = open(&got.expect("a file")).expect("opens");
    (pipes, other, here, there, file)
}

/// Numbers that look random and are the same every time.
fn sizes(mut state: u64) -> impl FnMut(usize) -> usize {
    move |most| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most + 1
    }
}

/// What byte number `i` is.
fn byte(i: usize) -> u8 {
    (i % 251) as u8
}

#[test]
fn bytes_come_in_order_and_whoever_sleeps_is_woken() {
    const TOTAL: usize = 4 << 20;
    let (mut ours, mut theirs, mut here, mut there, _) = joined();
    there.set_read_timeout(Some(LONG)).expect("a timeout");
    let (sleeps, reader_sleeps) = channel();
    let writer = thread::spawn(move || {
        let mut size = sizes(1);
        let mut sent = 0;
        // So that the reader sleeps at least once.
        reader_sleeps.recv().expect("it has nothing to read");
        while sent < TOTAL {
            // From single bytes to more than fits; at times the reader has time to fall asleep.
            let most = [1, 300, 2 * CAPACITY][size(3) - 1];
            let len = size(most).min(TOTAL - sent);
            let bytes: Vec<u8> = (sent..sent + len).map(byte).collect();
            let written = ours.writer.write(&bytes).expect("keeps to the rules");
            sent += written;
            if ours.writer.must_wake() {
                here.write_all(&[0]).expect("wakes");
            }
            if written < len || size(20) == 1 {
                thread::yield_now();
            }
        }
    });
    let mut size = sizes(2);
    let mut buffer = vec![0; 2 * CAPACITY];
    let (mut got, mut slept) = (0, 0);
    while got < TOTAL {
        let most = size(buffer.len());
        let len = theirs.reader.read(&mut buffer[..most]).expect("reads");
        for (i, &found) in buffer[..len].iter().enumerate() {
            assert_eq!(found, byte(got + i));
        }
        got += len;
        if len == 0 && theirs.reader.may_sleep().expect("looks") {
            slept += 1;
            // Only the first time is waited for.
            let _ = sleeps.send(());
            there.read_exact(&mut [0]).expect("is woken in time");
        }
    }
    writer.join().expect("writes all");
    assert!(slept > 0, "nobody slept, so nobody was woken");
}

#[test]
fn a_full_ring_takes_no_more_until_it_is_read() {
    let (mut ours, mut theirs, ..) = joined();
    let bytes: Vec<u8> = (0..CAPACITY + 10).map(byte).collect();
    assert_eq!(ours.writer.write(&bytes), Ok(CAPACITY));
    assert_eq!(ours.writer.write(&bytes), Ok(0));
    let mut buffer = [0; 7];
    assert_eq!(theirs.reader.read(&mut buffer), Ok(7));
    assert_eq!(ours.writer.write(&bytes[CAPACITY..]), Ok(7));
    // The other way is another ring.
    assert_eq!(ours.reader.read(&mut buffer), Ok(0));
    assert_eq!(theirs.writer.write(b"back"), Ok(4));
    assert_eq!(ours.reader.read(&mut buffer), Ok(4));
    assert_eq!(&buffer[..4], b"back");
}

#[test]
fn a_reader_is_woken_once_and_only_while_it_may_sleep() {
    let (mut ours, mut theirs, ..) = joined();
    assert!(!ours.writer.must_wake());
    assert_eq!(theirs.reader.may_sleep(), Ok(true));
    assert_eq!(ours.writer.write(b"a"), Ok(1));
    assert!(ours.writer.must_wake());
    assert!(!ours.writer.must_wake());
    // There is something already.
    let peek = theirs.reader.peek();
    assert!(peek.finds_any());
    assert_eq!(theirs.reader.may_sleep(), Ok(false));
    assert_eq!(theirs.reader.read(&mut [0; 4]), Ok(1));
    assert!(!peek.finds_any());
    assert!(!ours.writer.must_wake());
}

#[test]
fn a_peer_that_claims_to_be_elsewhere_is_found_out() {
    // The counters of the first ring: bytes written, bytes read.
    for (place, claim) in [(0, CAPACITY as u64 + 1), (0, u64::MAX), (128, 1)] {
        let (mut ours, mut theirs, _, _, file) = joined();
        let file = File::from(file);
        file.write_all_at(&claim.to_ne_bytes(), place)
            .expect("writes");
        if place == 0 {
            assert_eq!(theirs.reader.read(&mut [0; 8]), Err(Broken));
            assert_eq!(theirs.reader.may_sleep(), Err(Broken));
        } else {
            assert_eq!(ours.writer.write(b"x"), Err(Broken));
        }
    }
}

#[test]
fn a_file_that_could_shrink_or_is_another_is_not_opened() {
    let plain = tempfile::tempfile().expect("a file");
    let (_, file) = offer().expect("memory");
    let size = File::from(file).metadata().expect("its size").len();
    plain.set_len(size).expect("as long");
    open(&plain.into()).expect_err("it has no seals");
    let made = |size, seals| {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let file = memfd_create("other", flags).expect("memory");
        ftruncate(&file, size).expect("as long");
        fcntl_add_seals(&file, seals).expect("seals");
        open(&file)
    };
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    made(size, SealFlags::GROW).expect_err("it could shrink");
    made(size - 1, fixed).expect_err("it is too short");
    made(size, fixed).expect("it is as one that was offered");
    let (_, file) = offer().expect("memory");
    let file = File::from(file);
    file.set_len(0).expect_err("a file of memory cannot shrink");
    file.set_len(2 * size).expect_err("nor grow");
}

#[test]
fn bytes_can_come_without_a_file() {
    let (mut here, there) = UnixStream::pair().expect("a pair");
    here.write_all(b"nothing").expect("sends");
    let mut buffer = [0; 16];
    let (len, file) = receive(&there, &mut buffer).expect("receives");
    assert_eq!((&buffer[..len], file.is_none()), (&b"nothing"[..], true));
    drop(here);
    let (len, _) = receive(&there, &mut buffer).expect("ends");
    assert_eq!(len, 0);
}
