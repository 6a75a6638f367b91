//! Damages samples.

use std::{
    env,
    panic::{self, AssertUnwindSafe},
    time::{Duration, Instant},
};

use foretoken_speculation::hash;

/// Makes damaged inputs for a while.
pub(crate) struct Fuzzer {
    name: &'static str,
    state: u64,
    time: Duration,
}

/// Inputs that are made however long they take: on a busy machine the time is soon up.
const LEAST: u32 = 200;

/// Bytes that tend to hurt: structure of JSON and YAML, borders of integers.
const SPICE: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"null",
    b"-1",
    b"1e999",
    b"0",
    b"9223372036854775808",
    b"18446744073709551616",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x00",
    b"\xff",
    b"\n  - ",
    b"&a *a",
    b"\\u0000",
    b"\xf0\x9f",
    b"[[[[[[[[",
    b"NaN",
    b"true",
    b"\"\"",
];

impl Fuzzer {
    /// A fuzzer as the environment asks for.
    pub(crate) fn from_environment(name: &'static str) -> Self {
        let number = |name: &str| {
            env::var(name)
                .ok()
                .and_then(|text| text.parse::<u64>().ok())
        };
        Self {
            name,
            state: number("FORETOKEN_FUZZ_SEED").unwrap_or(1),
            time: Duration::from_secs(number("FORETOKEN_FUZZ_SECONDS").unwrap_or(2)),
        }
    }

    /// Feeds damaged samples to `check` until the time is up.
    ///
    /// # Panics
    /// If `check` does; the input is printed.
    pub(crate) fn run(self, samples: &[Vec<u8>], mut check: impl FnMut(&[u8])) {
        let name = self.name;
        let mut inputs = 0_u64;
        for input in self.inputs(samples) {
            inputs += 1;
            if let Err(cause) = panic::catch_unwind(AssertUnwindSafe(|| check(&input))) {
                eprintln!("{name}: input {inputs} is {}", input.escape_ascii());
                panic::resume_unwind(cause);
            }
        }
        println!("{name}: {inputs} inputs");
    }

    /// Some damaged samples, and more until the time is up.
    pub(crate) fn inputs(mut self, samples: &[Vec<u8>]) -> impl Iterator<Item = Vec<u8>> {
        let end = Instant::now() + self.time;
        let samples = samples.to_vec();
        let mut made = 0;
        std::iter::from_fn(move || {
            made += 1;
            (made <= LEAST || Instant::now() < end).then(|| {
                let mut input = samples[self.below(samples.len())].clone();
                for _ in 0..=self.below(4) {
                    self.damage(&mut input, &samples);
                }
                input
            })
        })
    }

    fn damage(&mut self, input: &mut Vec<u8>, samples: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let end = (at + self.below(16)).min(input.len());
        match self.below(8) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => {
                let spice = SPICE[self.below(SPICE.len())];
                input.splice(at..end, spice.iter().copied());
            }
            3 => {
                let spice = SPICE[self.below(SPICE.len())];
                input.splice(at..at, spice.iter().copied());
            }
            4 => {
                let copied = input[at..end].repeat(1 + self.below(64));
                input.splice(at..at, copied);
            }
            5 => {
                let other = &samples[self.below(samples.len())];
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << (self.next() % 8);
                }
            }
        }
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// `SplitMix64`.
    fn next(&mut self) -> u64 {
        let drawn = hash::mix(self.state);
        self.state = hash::next(self.state);
        drawn
    }
}
