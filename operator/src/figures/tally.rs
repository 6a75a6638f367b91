//! What proposals of each revision of an endpoint came to, as targets say: counted from one report to
//! the next, so that revisions are compared over the same time.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::Duration,
};

use foretoken_service::report::{EndpointReport, LinkState, Report, Rounds};

use super::{Named, endpoint_of};

/// Revisions of the pods that draft, by endpoint and address.
pub type Revisions = HashMap<(Named, IpAddr), String>;

/// Counts by endpoint and revision.
#[derive(Debug, Default)]
pub struct Tally {
    counts: HashMap<Named, BTreeMap<String, Rounds>>,
    trials: HashMap<Named, Begun>,
}

/// Two revisions that are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Digest of the one that serves.
    pub old: String,
    /// Digest of the one that is tried.
    pub new: String,
    /// Tells it from an earlier one of the same two.
    pub begun: i64,
}

/// What a trial came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Rounds with the old revision, and with the new one.
    pub rounds: [Rounds; 2],
    /// When this process began to count them, by its listener's clock.
    pub since: Duration,
}

#[derive(Debug)]
struct Begun {
    trial: Trial,
    since: Duration,
    /// What had been counted before this process knew of the trial, less what the tally had then.
    before: [Rounds; 2],
    from: [Rounds; 2],
}

impl Tally {
    /// A target said this `now`, that `before`.
    pub fn hear(&mut self, before: &Report, now: &Report, revisions: &Revisions) {
        let known = before.target.iter().flat_map(|target| &target.endpoints);
        let known: HashMap<(&str, &str), Rounds> = known
            .map(|one| ((one.name.as_str(), one.instance.as_str()), one.rounds))
            .collect();
        for endpoint in now.target.iter().flat_map(|target| &target.endpoints) {
            let Some((named, revision)) = revision_of(endpoint, revisions) else {
                continue;
            };
            let before = known.get(&(endpoint.name.as_str(), endpoint.instance.as_str()));
            let more = endpoint.rounds.since(before.copied().unwrap_or_default());
            let counts = self.counts.entry(named).or_default();
            let count = counts.entry(revision.to_owned()).or_default();
            *count = count.plus(more);
        }
    }

    /// What both revisions came to since the trial began; `before` is what was told of it by whoever
    /// counted earlier, and is asked for once. `now` is the time of the listener's clock.
    pub fn of(
        &mut self,
        named: &Named,
        trial: &Trial,
        before: [Rounds; 2],
        now: Duration,
    ) -> Counted {
        let counts = self.counts.entry(named.clone()).or_default();
        counts.retain(|revision, _| [&trial.old, &trial.new].contains(&revision));
        let both = [&trial.old, &trial.new].map(|it| counts.get(it).copied().unwrap_or_default());
        let known = self.trials.get(named).filter(|begun| begun.trial == *trial);
        if let Some(begun) = known {
            let count = |i: usize| begun.before[i].plus(both[i].since(begun.from[i]));
            return Counted {
                rounds: [count(0), count(1)],
                since: begun.since,
            };
        }
        let begun = Begun {
            trial: trial.clone(),
            since: now,
            before,
            from: both,
        };
        self.trials.insert(named.clone(), begun);
        Counted {
            rounds: before,
            since: now,
        }
    }

    /// Nothing of that endpoint is compared any more.
    pub fn end(&mut self, named: &Named) {
        self.trials.remove(named);
        self.counts.remove(named);
    }
}

/// Whose revision the replica at the other end of a link has.
fn revision_of<'a>(
    endpoint: &EndpointReport,
    revisions: &'a Revisions,
) -> Option<(Named, &'a str)> {
    let named = endpoint_of(&endpoint.name)?;
    let (_, address) = endpoint.name.split_once('@')?;
    let key = (named, address.parse().ok()?);
    let revision = revisions.get(&key)?;
    Some((key.0, revision))
}

/// Why a target that the old revision serves does not go together with the new one, if one says so.
pub fn refusal<'a>(
    targets: impl IntoIterator<Item = &'a Report>,
    named: &Named,
    trial: &Trial,
    revisions: &Revisions,
) -> Option<String> {
    targets.into_iter().find_map(|report| {
        let mut is_served = false;
        let mut refused = None;
        for endpoint in report.target.iter().flat_map(|target| &target.endpoints) {
            let Some((of, revision)) = revision_of(endpoint, revisions) else {
                continue;
            };
            if of != *named {
                continue;
            }
            is_served |= revision == trial.old && endpoint.link == LinkState::Up;
            if revision == trial.new && endpoint.link == LinkState::Refused {
                refused = Some(endpoint.trouble.clone().unwrap_or_default());
            }
        }
        refused.filter(|_| is_served)
    })
}

#[cfg(test)]
mod tests {
    use foretoken_service::report::TargetReport;

    use super::*;

    fn rounds(windows: u64, accepted: u64) -> Rounds {
        Rounds {
            windows,
            accepted,
            ..Rounds::default()
        }
    }

    fn report(old: Rounds, new: Rounds, links: [LinkState; 2]) -> Report {
        let endpoint = |address: &str, rounds, link| EndpointReport {
            name: format!("drafts/story@{address}"),
            instance: format!("pod-{address}"),
            rounds,
            link,
            trouble: (link == LinkState::Refused).then(|| "other words".to_owned()),
            ..EndpointReport::default()
        };
        Report {
            target: Some(TargetReport {
                endpoints: vec![
                    endpoint("10.0.0.1", old, links[0]),
                    endpoint("10.0.0.2", new, links[1]),
                ],
                ..TargetReport::default()
            }),
            ..Report::default()
        }
    }

    fn named() -> Named {
        ("drafts".into(), "story".into())
    }

    fn revisions() -> Revisions {
        let revision = |address: &str, revision: &str| {
            let address = address.parse().expect("an address");
            ((named(), address), revision.to_owned())
        };
        [revision("10.0.0.1", "a"), revision("10.0.0.2", "b")].into()
    }

    fn trial() -> Trial {
        Trial {
            old: "a".into(),
            new: "b".into(),
            begun: 1,
        }
    }

    const UP: [LinkState; 2] = [LinkState::Up, LinkState::Up];

    /// What is counted at the second second.
    fn counted(tally: &mut Tally, before: [Rounds; 2]) -> [Rounds; 2] {
        let now = Duration::from_secs(2);
        tally.of(&named(), &trial(), before, now).rounds
    }

    #[test]
    fn revisions_are_counted_from_when_both_are_there() {
        let mut tally = Tally::default();
        let reports = [(100, 0), (150, 10), (170, 30)]
            .map(|(old, new)| report(rounds(old, 2 * old), rounds(new, new), UP));
        tally.hear(&reports[0], &reports[1], &revisions());
        let nothing = [Rounds::default(); 2];
        assert_eq!(counted(&mut tally, nothing), nothing);
        tally.hear(&reports[1], &reports[2], &revisions());
        let now = counted(&mut tally, nothing);
        assert_eq!(now, [rounds(20, 40), rounds(20, 20)]);
        // A target that was started again counts from nothing.
        let again = report(rounds(5, 5), rounds(1, 0), UP);
        tally.hear(&reports[2], &again, &revisions());
        let now = counted(&mut tally, nothing);
        assert_eq!(now, [rounds(25, 45), rounds(21, 20)]);
        tally.end(&named());
        let later = Duration::from_secs(9);
        assert_eq!(tally.of(&named(), &trial(), nothing, later).since, later);
        let again = tally.of(&named(), &trial(), nothing, 2 * later);
        assert_eq!(again.since, later, "it went on");
        assert_eq!(counted(&mut tally, nothing), nothing);
    }

    #[test]
    fn an_operator_that_was_started_again_goes_on_from_what_was_told() {
        let mut tally = Tally::default();
        let told = [rounds(200, 300), rounds(40, 50)];
        assert_eq!(counted(&mut tally, told), told);
        let reports =
            [(100, 0), (150, 10)].map(|(old, new)| report(rounds(old, old), rounds(new, 0), UP));
        tally.hear(&reports[0], &reports[1], &revisions());
        // What is told in the meantime is not counted twice.
        let now = counted(&mut tally, [rounds(250, 350), rounds(50, 50)]);
        assert_eq!(now, [rounds(250, 350), rounds(50, 50)]);
    }

    #[test]
    fn who_is_nobodys_revision_is_not_counted() {
        let mut tally = Tally::default();
        let reports = [0, 50].map(|n| report(rounds(n, n), rounds(n, n), UP));
        tally.hear(&reports[0], &reports[1], &Revisions::new());
        let nothing = [Rounds::default(); 2];
        counted(&mut tally, nothing);
        assert_eq!(counted(&mut tally, nothing), nothing);
    }

    #[test]
    fn a_refusal_counts_where_the_old_revision_serves() {
        let refused = |links| {
            let report = report(rounds(1, 1), rounds(0, 0), links);
            refusal([&report], &named(), &trial(), &revisions())
        };
        assert_eq!(refused(UP), None);
        let new = [LinkState::Up, LinkState::Refused];
        assert_eq!(refused(new).as_deref(), Some("other words"));
        assert_eq!(refused([LinkState::Refused; 2]), None, "it never fitted");
        assert_eq!(refused([LinkState::Up, LinkState::Down]), None);
    }
}
