//! What the tests of the scheduler share.

mod admission;
mod preemption;
mod sharing;
mod world;

use super::*;

fn limits() -> Limits {
    Limits {
        running: 8,
        waiting: 8,
        rows: 64,
        prefill_rows: 32,
        pages: 100,
        positions: 1000,
    }
}

fn request(id: u64, tokens: usize, max_tokens: usize) -> Request {
    Request {
        id: RequestId(id),
        owner: id,
        tokens,
        max_tokens,
    }
}

/// A request that decodes after `len` tokens with KV.
fn decoding(id: u64, len: usize, window: usize) -> Running {
    let ask = Ask::Run { window };
    let owned_pages = pages_for(len);
    Running {
        id: RequestId(id),
        len,
        tokens: len + 1,
        owned_pages,
        shares_tail: false,
        ask,
    }
}

/// A request with `len` of its `tokens` in KV.
fn prefilling(id: u64, len: usize, tokens: usize) -> Running {
    Running {
        tokens,
        ..decoding(id, len, 0)
    }
}

/// A scheduler in which the requests of these numbers, of 10 tokens each, run.
fn with_running(limits: Limits, count: u64) -> Scheduler {
    let mut scheduler = Scheduler::new(Limits {
        prefill_rows: 1000,
        rows: 1000,
        ..limits
    });
    for id in 0..count {
        scheduler.submit(request(id, 10, 900)).unwrap();
    }
    let admitted = scheduler.plan(1000, &[]).admit;
    assert_eq!(admitted.len() as u64, count);
    scheduler.limits = limits;
    scheduler
}

fn ids(requests: impl Iterator<Item = RequestId>) -> Vec<u64> {
    requests.map(|id| id.0).collect()
}

fn windows(plan: &Plan) -> Vec<(u64, usize)> {
    plan.decode
        .iter()
        .map(|decode| (decode.id.0, decode.window))
        .collect()
}

fn chunks(chunks: &[Chunk]) -> Vec<(u64, usize)> {
    chunks
        .iter()
        .map(|chunk| (chunk.id.0, chunk.rows))
        .collect()
}
