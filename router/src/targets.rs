//! Which targets there are, how they are, and which one a request goes to.
//!
//! ```text
//! directory --watch--> table <--probe-- info() of each target
//! request --prefix, load--> choose --Lease--> target; dropping the lease lowers its load
//! ```
//!
//! A target is ready once it has answered a probe and until a probe or a request finds it gone.

mod affinity;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use foretoken_protocol::{
    Callee,
    generate::{GenerateClient, TargetInfo},
    tls::Tls,
};
use foretoken_registry::{Directory, TargetEntry};
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use self::affinity::Affinity;
pub(crate) use self::affinity::CachedAs;

/// A target that answers later than this is not ready.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a target that was full is passed over.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// One target.
pub(crate) struct Target {
    pub(crate) entry: TargetEntry,
    pub(crate) client: GenerateClient,
    /// Requests of this router that it serves.
    in_flight: AtomicU32,
    /// Whether it is being asked how it is.
    probed: AtomicBool,
    state: Mutex<State>,
}

/// What is known of a target.
#[derive(Clone, Debug, Default)]
struct State {
    ready: bool,
    /// As of the last probe that was answered.
    info: Option<Arc<TargetInfo>>,
    /// Full until then: it said so.
    busy_until: Option<Instant>,
    /// Why the last probe failed.
    trouble: Option<String>,
}

impl State {
    /// A probe failed, for this reason; gives it back if it is news.
    fn fail(&mut self, cause: String) -> String {
        self.ready = false;
        let known = self.trouble.replace(cause.clone());
        if known.as_ref() == Some(&cause) {
            String::new()
        } else {
            cause
        }
    }
}

impl Target {
    fn new(entry: TargetEntry, tls: Option<Tls>) -> Self {
        let callee = Callee {
            address: entry.address.clone(),
            serves: entry.serves.clone(),
        };
        let client = GenerateClient::new(entry.name.clone(), callee).with_tls(tls);
        Self {
            entry,
            client,
            in_flight: AtomicU32::new(0),
            probed: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is plain data; a panic elsewhere cannot leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the target said of itself last.
    pub(crate) fn info(&self) -> Option<Arc<TargetInfo>> {
        self.state().info.clone()
    }

    /// A request found the target full: others go first for a moment.
    pub(crate) fn set_busy(&self) {
        self.state().busy_until = Some(Instant::now() + BUSY_PAUSE);
    }

    fn load(&self, state: &State) -> u32 {
        let reported = state
            .info
            .as_ref()
            .map_or(0, |i| i.load.running + i.load.waiting);
        // Other routers' requests show in the report only, the latest of ours here only.
        self.in_flight.load(Ordering::Relaxed).max(reported)
    }
}

/// A request's place at a target.
pub(crate) struct Lease {
    target: Arc<Target>,
}

impl Lease {
    fn new(target: Arc<Target>) -> Self {
        target.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { target }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.target.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whose output a replay must match: logits are bit-equal between equal digests and paths, and an
/// output is not shorter for having moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    model_digest: String,
    path: String,
    /// Least positions that its sequence has.
    positions: u32,
}

impl Identity {
    /// That of the target with this `info`, for a sequence of up to `longest` tokens.
    pub(crate) fn of(info: &TargetInfo, longest: u32) -> Self {
        Self {
            model_digest: info.model_digest.clone(),
            path: info.path.clone(),
            positions: info.max_positions.min(longest),
        }
    }

    fn is_met_by(&self, info: &TargetInfo) -> bool {
        (&self.model_digest, &self.path) == (&info.model_digest, &info.path)
            && self.positions <= info.max_positions
    }
}

/// Why no target was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTarget {
    /// None is listed for the model.
    NoneListed,
    /// None of the listed ones answers.
    NoneReady,
    /// All that answer are draining, and no more to be asked.
    AllLeaving,
    /// All that answer and are not draining are full.
    AllBusy,
    /// Those that answer run another model or arithmetic than the one lost, or have too little room.
    NoneAlike,
}

/// All targets.
pub(crate) struct Targets {
    tls: Option<Tls>,
    table: Mutex<BTreeMap<String, Arc<Target>>>,
    /// Digest of the tokenizer of each model.
    tokenizers: BTreeMap<String, String>,
    /// When a target of each model was last lost, draining or taken off the list: whoever replaces
    /// it has another name and may not be listed yet.
    left: Mutex<BTreeMap<String, Instant>>,
    affinity: Mutex<Affinity>,
    /// Wakes the prober before its time.
    probe_now: Notify,
    /// Wakes whoever waits for a target, after each probe.
    changed: watch::Sender<u64>,
    ever_ready: AtomicBool,
}

impl Targets {
    /// None yet, of models whose tokenizers have these digests; those that are found are dialled with
    /// `tls`, if there is any.
    pub(crate) fn new(tokenizers: BTreeMap<String, String>, tls: Option<Tls>) -> Self {
        Self {
            tls,
            table: Mutex::default(),
            tokenizers,
            left: Mutex::default(),
            affinity: Mutex::new(Affinity::new()),
            probe_now: Notify::new(),
            changed: watch::Sender::new(0),
            ever_ready: AtomicBool::new(false),
        }
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Target>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the table what `fixed` and `directory` say, `fixed` where both have a name; targets that stay keep
    /// their state.
    pub(crate) fn update(&self, fixed: &[TargetEntry], directory: Option<&Directory>) {
        let found = directory.into_iter().flat_map(|d| &d.targets);
        let listed = found.chain(fixed);
        let mut table = self.table();
        let mut next = BTreeMap::new();
        for entry in listed {
            let same = table
                .get(&entry.name)
                .filter(|target| target.entry == *entry)
                .cloned();
            let target =
                same.unwrap_or_else(|| Arc::new(Target::new(entry.clone(), self.tls.clone())));
            next.insert(entry.name.clone(), target);
        }
        let before = std::mem::replace(&mut *table, next);
        let stays = |target: &Arc<Target>| {
            let same = table.get(&target.entry.name);
            same.is_some_and(|same| Arc::ptr_eq(same, target))
        };
        for target in before.values().filter(|target| !stays(target)) {
            if target.state().ready {
                self.left(&target.entry.model);
            }
        }
        drop(table);
        self.probe_now.notify_one();
    }

    /// Probes all targets again and again until `stop`. One that does not answer holds up none of
    /// the others.
    pub(crate) async fn probe(&self, period: Duration, stop: CancellationToken) {
        let mut probes = FuturesUnordered::new();
        let mut due = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = probes.next(), if !probes.is_empty() => {
                    due = due.min(Instant::now() + self.pause(period));
                    continue;
                }
                () = self.probe_now.notified() => {}
                () = tokio::time::sleep_until(due) => {}
            }
            for target in self.table().values() {
                if !target.probed.swap(true, Ordering::Relaxed) {
                    let target = Arc::clone(target);
                    probes.push(async move {
                        self.probe_one(&target).await;
                        target.probed.store(false, Ordering::Relaxed);
                    });
                }
            }
            due = Instant::now() + self.pause(period);
        }
    }

    /// Targets that are away are asked more often: someone may be waiting for them.
    fn pause(&self, period: Duration) -> Duration {
        let away = self.table().values().any(|target| !target.state().ready);
        if away {
            period.min(Duration::from_millis(100))
        } else {
            period
        }
    }

    async fn probe_one(&self, target: &Target) {
        let answer = tokio::time::timeout(PROBE_TIMEOUT, target.client.info()).await;
        let mut state = target.state();
        let was = state.ready;
        let answered = matches!(answer, Ok(Ok(_)));
        let cause = match answer {
            // Addresses are used again: somebody else may answer there now.
            Ok(Ok(info)) if self.is_stranger(target, &info) => state.fail(format!(
                "{} answers, which has another tokenizer than the model: it is no target of it",
                info.instance
            )),
            Ok(Ok(info)) => {
                if info.load.draining {
                    self.left(&target.entry.model);
                }
                state.ready = true;
                state.info = Some(Arc::new(info));
                state.trouble = None;
                self.ever_ready.store(true, Ordering::Relaxed);
                String::new()
            }
            Ok(Err(error)) => state.fail(error.to_string()),
            Err(_) => state.fail("no answer in time".to_owned()),
        };
        if was && !state.ready {
            self.left(&target.entry.model);
        }
        if was != state.ready {
            let name = &target.entry.name;
            if state.ready {
                tracing::info!(target = name, address = %target.entry.address, "target is ready");
            } else {
                tracing::warn!(target = name, address = %target.entry.address, cause, "target is gone");
            }
        } else if !cause.is_empty() {
            let (name, address) = (&target.entry.name, &target.entry.address);
            if answered || state.info.is_some() {
                tracing::warn!(target = name, %address, cause, "target cannot be used");
            } else {
                // It begins, as a rule, while its target loads a model.
                tracing::info!(target = name, %address, cause, "target is not there yet");
            }
        }
        drop(state);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Whether who answers for `target` cannot be a target of its model. One that says nothing of its
    /// tokenizer is believed.
    fn is_stranger(&self, target: &Target, info: &TargetInfo) -> bool {
        let known = self.tokenizers.get(&target.entry.model);
        let said = &info.tokenizer_digest;
        known.is_some_and(|known| !said.is_empty() && known != said)
    }

    /// Chooses a target of the prompt's model: the one that has most of its prefix, unless it
    /// is overloaded. With `like`, only targets whose output is the same. `avoid` is the target
    /// that was just lost: it is taken only if there is no other.
    pub(crate) fn choose(
        &self,
        prompt: CachedAs<'_>,
        like: Option<&Identity>,
        avoid: Option<&str>,
    ) -> Result<Lease, NoTarget> {
        let now = Instant::now();
        let model = prompt.model;
        let mut why = NoTarget::NoneListed;
        let mut loads: Vec<(Arc<Target>, u32)> = Vec::new();
        for target in self
            .table()
            .values()
            .filter(|target| target.entry.model == model)
        {
            let state = target.state();
            let info = state.info.as_deref();
            let alike = like.is_none_or(|like| info.is_some_and(|info| like.is_met_by(info)));
            let reason = if !state.ready {
                NoTarget::NoneReady
            } else if !alike {
                NoTarget::NoneAlike
            } else if info.is_some_and(|info| info.load.draining) {
                NoTarget::AllLeaving
            } else if state.busy_until.is_some_and(|until| until > now) {
                NoTarget::AllBusy
            } else {
                loads.push((Arc::clone(target), target.load(&state)));
                continue;
            };
            // The most hopeful reason is told.
            if why == NoTarget::NoneListed || reason == NoTarget::AllBusy {
                why = reason;
            }
        }
        if loads.len() > 1 {
            loads.retain(|(target, _)| avoid != Some(target.entry.name.as_str()));
        }
        if loads.is_empty() {
            return Err(why);
        }
        let named: Vec<(&str, u32)> = loads
            .iter()
            .map(|(target, load)| (target.entry.name.as_str(), *load))
            .collect();
        let chosen = self
            .affinity
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .choose(prompt, &named);
        Ok(Lease::new(Arc::clone(&loads[chosen].0)))
    }

    /// A request found the target gone: it is not chosen again before a probe is answered.
    pub(crate) fn lost(&self, target: &Target) {
        target.state().ready = false;
        self.left(&target.entry.model);
        self.probe_now.notify_one();
    }

    /// A target of `model` serves no more.
    fn left(&self, model: &str) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.insert(model.to_owned(), Instant::now());
    }

    /// Whether a target of `model` was there within the last `span`, so that waiting makes sense.
    pub(crate) fn left_within(&self, model: &str, span: Duration) -> bool {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.get(model).is_some_and(|at| at.elapsed() < span)
    }

    /// Hears of every probe.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Targets of `model` (or of any) that are ready, and those that are listed.
    pub(crate) fn count(&self, model: Option<&str>) -> (usize, usize) {
        let table = self.table();
        let of_model = |t: &&Arc<Target>| model.is_none_or(|model| t.entry.model == model);
        let listed = table.values().filter(of_model);
        (
            listed.clone().filter(|t| t.state().ready).count(),
            listed.count(),
        )
    }

    /// Whether any target has ever been ready.
    pub(crate) fn ever_ready(&self) -> bool {
        self.ever_ready.load(Ordering::Relaxed)
    }

    /// Longest sequence that every known target of `model` can hold.
    pub(crate) fn max_positions(&self, model: &str) -> Option<u32> {
        let table = self.table();
        let of_model = table.values().filter(|target| target.entry.model == model);
        of_model
            .filter_map(|target| target.info())
            .map(|info| info.max_positions)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_fixed_target_goes_before_one_that_is_found_under_its_name() {
        let entry = |name: &str, port| TargetEntry {
            name: name.into(),
            model: "m".into(),
            address: foretoken_protocol::Address::loopback(port),
            serves: None,
        };
        let found = Directory {
            targets: vec![entry("a", 2), entry("b", 3)],
            ..Directory::default()
        };
        let targets = Targets::new(BTreeMap::new(), None);
        targets.update(&[entry("a", 1)], Some(&found));
        let table = targets.table();
        let entries: Vec<_> = table.values().map(|target| target.entry.clone()).collect();
        assert_eq!(entries, [entry("a", 1), entry("b", 3)]);
    }
}
