//! A relay between a target and its endpoint that lets every byte wait, and counts them.
//!
//! ```text
//! target --> reader --(when it came, bytes)--> writer, which sleeps until it is due --> endpoint
//! ```
//!
//! and the same the other way. Order is kept, and a wait does not hold up what comes behind it, so
//! this is a longer cable and not a slower one.

use std::{
    io::{self, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// The system's timer wakes up to this late; what is left is spent looking at the clock.
const TIMER_SLACK: Duration = Duration::from_micros(80);

/// Bytes that have passed a relay.
#[derive(Debug, Default)]
pub struct Passed {
    up: AtomicU64,
    down: AtomicU64,
}

impl Passed {
    /// Bytes to the endpoint and from it.
    pub fn both(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.up), read(&self.down))
    }
}

/// Relays connections to `path` to the socket `upstream`, until the process ends; each byte
/// arrives `delay` later than it would.
pub fn start(path: &Path, upstream: PathBuf, delay: Duration) -> io::Result<Arc<Passed>> {
    let listener = UnixListener::bind(path)?;
    let passed = Arc::new(Passed::default());
    let counted = Arc::clone(&passed);
    thread::spawn(move || {
        for target in listener.incoming().flatten() {
            // The endpoint may not listen yet; the target dials again.
            if let Ok(endpoint) = UnixStream::connect(&upstream) {
                // Without descriptors or threads the connection ends, as any may.
                let _ = relay(&target, &endpoint, &counted, delay);
            }
        }
    });
    Ok(passed)
}

fn relay(
    target: &UnixStream,
    endpoint: &UnixStream,
    passed: &Arc<Passed>,
    delay: Duration,
) -> io::Result<()> {
    for (from, to, upwards) in [(target, endpoint, true), (endpoint, target, false)] {
        let (from, to, passed) = (from.try_clone()?, to.try_clone()?, Arc::clone(passed));
        let (sender, receiver) = channel();
        thread::spawn(move || read(from, &sender, &passed, upwards));
        thread::spawn(move || write(to, &receiver, delay));
    }
    Ok(())
}

fn read(mut from: UnixStream, to: &Sender<(Instant, Vec<u8>)>, passed: &Passed, upwards: bool) {
    let counter = if upwards { &passed.up } else { &passed.down };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        counter.fetch_add(len as u64, Ordering::Relaxed);
        if to.send((Instant::now(), buffer[..len].to_vec())).is_err() {
            return;
        }
    }
}

fn write(mut to: UnixStream, from: &Receiver<(Instant, Vec<u8>)>, delay: Duration) {
    while let Ok((came, bytes)) = from.recv() {
        wait_until(came + delay);
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
    // The other end is to see the end too; it may have seen it already.
    let _ = to.shutdown(std::net::Shutdown::Both);
}

fn wait_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if left > TIMER_SLACK {
        thread::sleep(left.saturating_sub(TIMER_SLACK));
    }
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_in_order_no_earlier_than_delayed_and_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let (upstream, path) = (folder.path().join("up"), folder.path().join("relay"));
        let listener = UnixListener::bind(&upstream).expect("binds");
        let delay = Duration::from_millis(20);
        let passed = start(&path, upstream, delay).expect("binds");
        let mut target = UnixStream::connect(&path).expect("it listens");
        let (mut endpoint, _) = listener.accept().expect("it dials");
        let begun = Instant::now();
        target.write_all(b"question").expect("writes");
        let mut question = [0; 8];
        endpoint.read_exact(&mut question).expect("reads");
        assert!(begun.elapsed() >= delay);
        endpoint.write_all(b"answer").expect("writes");
        drop(endpoint);
        let mut answer = Vec::new();
        target.read_to_end(&mut answer).expect("reads to the end");
        assert!(begun.elapsed() >= 2 * delay);
        assert_eq!(
            (&question, answer.as_slice()),
            (b"question", &b"answer"[..])
        );
        assert_eq!(passed.both(), (8, 6));
    }
}
