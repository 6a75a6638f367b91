//! Worker threads of the kernels.
//!
//! A job is a closure over task numbers. Threads claim tasks one by one from a single word, so a
//! worker that the system has taken off its core delays nothing: the others, the caller first of
//! all, do its share. Workers spin for a moment after a job, since the next one usually follows
//! within microseconds, then sleep.
//!
//! Invariant: a job's closure is only touched by a thread that has claimed one of its tasks, and
//! [`Pool::run`] returns only when every task is done.

#![expect(
    unsafe_code,
    reason = "a job borrows from the caller's stack while workers run it"
)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long an idle worker spins before it sleeps: longer than the gaps within a step, short
/// enough not to starve other threads of a machine with few cores.
const SPIN: Duration = Duration::from_micros(20);

/// Most tasks of one job: what its field of the claim word holds.
const MAX_TASKS: usize = 0xffff;

/// A closure over task numbers, its lifetime erased.
type Job = *const (dyn Fn(usize) + Sync);

/// What the threads share.
struct Shared {
    /// `generation << 32 | tasks << 16 | next`: a thread claims a task by adding one.
    claims: AtomicU64,
    done: AtomicU32,
    job: UnsafeCell<Option<Job>>,
    /// Workers asleep or about to be.
    sleepers: AtomicU32,
    stop: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only while no task is claimable and read only by claimers.
unsafe impl Sync for Shared {}
// SAFETY: the job pointer refers to a `Sync` closure.
unsafe impl Send for Shared {}

/// A fixed set of worker threads.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held for the length of a job, so that callers on several threads take turns.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
    /// Core of the thread that calls [`Pool::run`].
    first_core: Option<usize>,
}

/// Why the worker threads could not be started.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The system refused a thread.
    #[error("cannot start a kernel thread")]
    Start(#[source] io::Error),
    /// The system refused to pin a thread.
    #[error("cannot pin a kernel thread to core {core}; list only cores this process may use")]
    Pin {
        /// The core asked for.
        core: usize,
        /// Why not.
        source: io::Error,
    },
}

impl Pool {
    /// Starts `threads - 1` workers; the thread that calls [`Pool::run`] is the remaining one. Worker
    /// i is pinned to `cores[i % cores.len()]`, unless `cores` is empty; `cores[0]` is for the caller,
    /// which [`Pool::pin_caller`] pins: it need not be the thread that calls this.
    ///
    /// # Errors
    /// If a thread cannot be started or pinned.
    pub fn new(threads: usize, cores: &[usize]) -> Result<Self, PoolError> {
        let shared = Arc::new(Shared {
            claims: AtomicU64::new(0),
            done: AtomicU32::new(0),
            job: UnsafeCell::new(None),
            sleepers: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Self {
            shared,
            turn: Mutex::new(()),
            workers: Vec::new(),
            first_core: cores.first().copied(),
        };
        for worker in 1..threads {
            let core = cores.get(worker % cores.len().max(1)).copied();
            pool.start(worker, core)?;
        }
        Ok(pool)
    }

    fn start(&mut self, worker: usize, core: Option<usize>) -> Result<(), PoolError> {
        let shared = Arc::clone(&self.shared);
        let (report, pinned) = std::sync::mpsc::sync_channel(1);
        let body = move || {
            let outcome = core.map_or(Ok(()), pin_current_thread);
            let go_on = outcome.is_ok();
            // The receiver waits for exactly this message, so it cannot be gone.
            let _ = report.send(outcome);
            if go_on {
                work(&shared);
            }
        };
        let handle = thread::Builder::new()
            .name(format!("kernel-{worker}"))
            .spawn(body)
            .map_err(PoolError::Start)?;
        self.workers.push(handle);
        pinned.recv().unwrap_or(Ok(()))
    }

    /// Pins the calling thread, which will call [`Pool::run`], to the first core, if there are cores.
    ///
    /// # Errors
    /// If this process may not use the core.
    pub fn pin_caller(&self) -> Result<(), PoolError> {
        self.first_core.map_or(Ok(()), pin_current_thread)
    }

    /// Runs `job(0)` to `job(tasks - 1)`, shared among the threads, and returns when all are
    /// done. A panic of a task is passed on to the caller. Jobs must not start jobs.
    ///
    /// # Panics
    /// If `tasks` is above 65,535.
    pub fn run(&self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(job);
            return;
        }
        assert!(tasks <= MAX_TASKS, "too many tasks for one job");
        let _turn = relock(&self.turn);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes, and no thread uses the pointer after this call.
        let job: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: all tasks of earlier jobs are done and none is claimable, so nobody reads.
        unsafe { *shared.job.get() = Some(job) };
        shared.done.store(0, Ordering::Relaxed);
        let generation = (shared.claims.load(Ordering::Relaxed) >> 32) + 1;
        let word = (generation << 32) | ((tasks as u64) << 16);
        shared.claims.store(word, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = relock(&shared.lock);
            shared.wake.notify_all();
        }
        while shared.work_one() {}
        let mut idle = Idle::default();
        while shared.done.load(Ordering::Acquire) != tasks as u32 {
            if idle.is_over() {
                // A worker holding a task has lost its core: let it have this one.
                thread::yield_now();
            }
        }
        let panic = relock(&shared.panic).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Number of threads, the calling one included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _guard = relock(&self.shared.lock);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks and has nothing else to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Whether a task can be claimed.
    fn has_work(&self) -> bool {
        let word = self.claims.load(Ordering::SeqCst);
        word & 0xffff < (word >> 16) & 0xffff
    }

    /// Claims and runs one task, if there is one.
    fn work_one(&self) -> bool {
        let mut word = self.claims.load(Ordering::Acquire);
        loop {
            let task = word & 0xffff;
            if task >= (word >> 16) & 0xffff {
                return false;
            }
            let claim = self.claims.compare_exchange_weak(
                word,
                word + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match claim {
                Ok(_) => {
                    self.perform(task as usize);
                    return true;
                }
                Err(now) => word = now,
            }
        }
    }

    /// Runs a claimed task.
    fn perform(&self, task: usize) {
        // SAFETY: the claim succeeded, so its job was published before and stays until the task
        // is counted as done, below.
        let job = unsafe { *self.job.get() };
        if let Some(job) = job {
            // SAFETY: as above; the closure is `Sync`.
            let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)(task) }));
            if let Err(payload) = outcome {
                *relock(&self.panic) = Some(payload);
            }
        }
        self.done.fetch_add(1, Ordering::Release);
    }

    /// Sleeps until there is work or the pool ends.
    fn sleep(&self) {
        let mut guard = relock(&self.lock);
        // Announced before the last look at the claims, as `run` publishes before it looks for
        // sleepers: one of the two sees the other.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.has_work() && !self.stop.load(Ordering::SeqCst) {
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Body of a worker.
fn work(shared: &Shared) {
    let mut idle = Idle::default();
    while !shared.stop.load(Ordering::Relaxed) {
        if shared.work_one() {
            idle = Idle::default();
        } else if idle.is_over() {
            shared.sleep();
            idle = Idle::default();
        }
    }
}

/// Measures a spell of spinning.
#[derive(Default)]
struct Idle {
    turns: u32,
    since: Option<Instant>,
}

impl Idle {
    /// Pauses a moment; says whether the spell has lasted [`SPIN`].
    fn is_over(&mut self) -> bool {
        std::hint::spin_loop();
        self.turns = self.turns.wrapping_add(1);
        // The clock costs as much as several pauses.
        self.turns.is_multiple_of(16)
            && self.since.get_or_insert_with(Instant::now).elapsed() > SPIN
    }
}

/// Locks whatever a panicking holder left: the guarded data are valid at every point.
fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pins the calling thread to a core.
#[cfg(target_os = "linux")]
fn pin_current_thread(core: usize) -> Result<(), PoolError> {
    let words = core / 64 + 1;
    let mut mask = vec![0_u64; words];
    mask[core / 64] = 1 << (core % 64);
    // SAFETY: the mask is `words * 8` bytes long; thread 0 is the calling one.
    let status = unsafe { libc::sched_setaffinity(0, words * 8, mask.as_ptr().cast()) };
    if status == 0 {
        Ok(())
    } else {
        Err(PoolError::Pin {
            core,
            source: io::Error::last_os_error(),
        })
    }
}

/// Fails: elsewhere than on Linux the system places threads.
#[cfg(not(target_os = "linux"))]
fn pin_current_thread(core: usize) -> Result<(), PoolError> {
    Err(PoolError::Pin {
        core,
        source: io::ErrorKind::Unsupported.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads, &[]).unwrap();
            for tasks in [0, 1, 2, 7, 300] {
                let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                for _ in 0..20 {
                    pool.run(tasks, &|task| {
                        counts[task].fetch_add(1, Ordering::Relaxed);
                    });
                }
                assert!(
                    counts
                        .iter()
                        .all(|count| count.load(Ordering::Relaxed) == 20)
                );
            }
        }
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = Pool::new(3, &[]).unwrap();
        let total = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(5, &|_| {
                            total.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 4 * 200 * 5);
    }

    #[test]
    fn work_that_comes_after_a_pause_wakes_the_sleepers() {
        let pool = Pool::new(2, &[]).unwrap();
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(2));
            let seen = AtomicU32::new(0);
            pool.run(2, &|_| {
                seen.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(seen.load(Ordering::Relaxed), 2);
        }
    }

    #[test]
    fn a_panic_of_a_task_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(2, &[]).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(4, &|task| assert_ne!(task, 3, "deliberate"));
        }));
        assert!(outcome.is_err());
        let done = AtomicU32::new(0);
        pool.run(4, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 4);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_core_that_does_not_exist_is_named() {
        let error = Pool::new(2, &[100_000]).unwrap_err().to_string();
        assert!(error.contains("100000"), "{error}");
        let alone = Pool::new(1, &[100_000]).unwrap();
        let error = alone.pin_caller().unwrap_err().to_string();
        assert!(error.contains("100000"), "{error}");
    }

    /// Cores that the calling thread may run on.
    #[cfg(target_os = "linux")]
    fn cores_of_this_thread() -> Vec<usize> {
        let mut mask = [0_u64; 16];
        // SAFETY: the mask has the size that is said; thread 0 is the calling one.
        let status =
            unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
        assert_eq!(status, 0);
        let is_set = |core: &usize| mask[core / 64] >> (core % 64) & 1 == 1;
        (0..64 * mask.len()).filter(is_set).collect()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn whoever_calls_has_the_first_core_and_workers_the_others_in_turn() {
        let cores = cores_of_this_thread();
        let (first, last) = (cores[0], *cores.last().unwrap());
        for order in [[first, last], [last, first]] {
            let pool = Pool::new(2, &order).unwrap();
            let caller = thread::spawn(move || {
                pool.pin_caller().unwrap();
                let seen = Mutex::new(Vec::new());
                // Two tasks that wait for each other are on two threads.
                let both = std::sync::Barrier::new(2);
                pool.run(2, &|_| {
                    both.wait();
                    relock(&seen).push((thread::current().id(), cores_of_this_thread()));
                });
                let me = thread::current().id();
                let mut seen = seen.into_inner().unwrap();
                seen.sort_by_key(|(id, _)| *id != me);
                seen.into_iter().map(|(_, cores)| cores).collect::<Vec<_>>()
            });
            assert_eq!(caller.join().unwrap(), order.map(|core| vec![core]));
        }
        assert_eq!(
            cores_of_this_thread(),
            cores,
            "whoever made the pool is free"
        );
        Pool::new(1, &[]).unwrap().pin_caller().unwrap();
        assert_eq!(cores_of_this_thread(), cores, "no cores were said");
    }
}
