//! Whether a deployment really speculates: what its targets say of their links to endpoints.

use std::collections::BTreeMap;

use foretoken_crds::deployment::OnLoss;
use foretoken_protocol::Address;
use foretoken_speculation::policy::Policy;
use foretoken_target::{LinkReport, LinkState};

use super::render::{Program, Role};

/// The links of all targets.
#[derive(Debug)]
pub(super) struct Links {
    policy: Policy,
    on_loss: OnLoss,
    endpoints: Vec<Endpoint>,
    /// By index of the target's process.
    targets: BTreeMap<usize, Vec<LinkReport>>,
}

/// A draft, as far as its process says.
#[derive(Debug)]
struct Endpoint {
    /// Index of the process.
    index: usize,
    name: String,
    address: Address,
    /// Whether sessions are to be bound to it.
    is_asked: bool,
    /// Why it could not start.
    failure: Option<String>,
}

impl Links {
    /// Nothing has been heard yet.
    pub(super) fn new(policy: Policy, on_loss: OnLoss, programs: &[Program]) -> Self {
        let endpoint = |(index, program): (usize, &Program)| match &program.role {
            Role::Draft { address, weight } => Some(Endpoint {
                index,
                name: program.name.clone(),
                address: address.clone(),
                is_asked: *weight > 0,
                failure: None,
            }),
            Role::Target | Role::Router => None,
        };
        let is_target = |(_, program): &(usize, &Program)| program.role == Role::Target;
        let targets = programs.iter().enumerate().filter(is_target);
        Self {
            policy,
            on_loss,
            endpoints: programs.iter().enumerate().filter_map(endpoint).collect(),
            targets: targets.map(|(index, _)| (index, Vec::new())).collect(),
        }
    }

    /// Takes in what the target of this index says now.
    pub(super) fn note(&mut self, target: usize, links: Vec<LinkReport>) {
        if let Some(known) = self.targets.get_mut(&target) {
            *known = links;
        }
    }

    /// The target of this index is gone, and its links with it.
    pub(super) fn forget(&mut self, target: usize) {
        self.note(target, Vec::new());
    }

    /// A process could not start. False if it is no draft: nothing can do without it.
    pub(super) fn fail(&mut self, index: usize, reason: String) -> bool {
        let mut endpoints = self.endpoints.iter_mut();
        let Some(endpoint) = endpoints.find(|endpoint| endpoint.index == index) else {
            return false;
        };
        endpoint.failure = Some(reason);
        true
    }

    /// Whether the process of this index is a target.
    pub(super) fn is_target(&self, index: usize) -> bool {
        self.targets.contains_key(&index)
    }

    /// Whether the process of this index is a draft.
    pub(super) fn is_draft(&self, index: usize) -> bool {
        self.endpoint(index).is_some()
    }

    /// Whether the process of this index is a draft that could not start.
    pub(super) fn has_failed(&self, index: usize) -> bool {
        let endpoint = self.endpoint(index);
        endpoint.is_some_and(|endpoint| endpoint.failure.is_some())
    }

    fn endpoint(&self, index: usize) -> Option<&Endpoint> {
        let mut endpoints = self.endpoints.iter();
        endpoints.find(|endpoint| endpoint.index == index)
    }

    /// Whether every link is up or refused: waiting would change nothing.
    pub(super) fn are_settled(&self) -> bool {
        let is_settled = |state: Option<&LinkState>| {
            matches!(state, Some(LinkState::Up | LinkState::Refused(_)))
        };
        self.asked().all(|endpoint| {
            endpoint.failure.is_some() || self.states(&endpoint.address).all(is_settled)
        })
    }

    fn asked(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(|endpoint| endpoint.is_asked)
    }

    /// The policy that requests really get, and why it is not the one asked for.
    pub(super) fn verdict(&self) -> String {
        let asked = self.policy.name();
        if self.policy == Policy::Autoregressive {
            return asked.to_owned();
        }
        let mut is_any_up = false;
        let mut troubles = Vec::new();
        for endpoint in self.asked() {
            let name = &endpoint.name;
            if let Some(reason) = &endpoint.failure {
                troubles.push(format!("endpoint {name} could not start: {reason}"));
                continue;
            }
            let mut trouble = None;
            for state in self.states(&endpoint.address) {
                match state {
                    Some(LinkState::Up) => is_any_up = true,
                    Some(LinkState::Refused(reason)) => {
                        trouble = Some(format!("endpoint {name} refused: {reason}"));
                    }
                    Some(LinkState::Down(reason)) => {
                        trouble = Some(format!("endpoint {name} not connected: {reason}"));
                    }
                    Some(LinkState::Dialling) | None => {
                        trouble.get_or_insert_with(|| format!("endpoint {name} not connected yet"));
                    }
                }
            }
            troubles.extend(trouble);
        }
        let troubles = troubles.join("; ");
        let alone = match self.on_loss {
            OnLoss::Plain => Policy::Autoregressive.name(),
            OnLoss::Local => "local proposals",
        };
        match (is_any_up, troubles.is_empty()) {
            (true, true) => asked.to_owned(),
            (true, false) => format!("{asked}; {troubles}"),
            (false, true) => format!("{alone}: no endpoints"),
            (false, false) => format!("{alone}: {troubles}"),
        }
    }

    /// What every target says of its link to `address`.
    fn states<'a>(&'a self, address: &'a Address) -> impl Iterator<Item = Option<&'a LinkState>> {
        self.targets.values().map(move |links| {
            let link = links.iter().find(|link| link.address == *address);
            link.map(|link| &link.state)
        })
    }
}

#[cfg(test)]
mod tests {
    use foretoken_speculation::policy::Lookahead;

    use super::*;

    fn links(drafts: u16, on_loss: OnLoss) -> Links {
        let program = |name: String, role| Program {
            name,
            arguments: Vec::new(),
            environment: Vec::new(),
            role,
        };
        let draft = |port| Role::Draft {
            address: Address::loopback(port),
            weight: 1,
        };
        let mut programs: Vec<_> = (1..=drafts)
            .map(|port| program(format!("draft-{port}"), draft(port)))
            .collect();
        programs.push(program("target-0".into(), Role::Target));
        programs.push(program("router".into(), Role::Router));
        let policy = Policy::Speculative(Lookahead::Fixed(4));
        Links::new(policy, on_loss, &programs)
    }

    fn report(states: &[LinkState]) -> Vec<LinkReport> {
        let report = |(port, state): (u16, &LinkState)| LinkReport {
            address: Address::loopback(port),
            state: state.clone(),
        };
        (1..).zip(states).map(report).collect()
    }

    #[test]
    fn a_refused_endpoint_is_no_speculation_and_its_reason_is_said() {
        let mut links = links(1, OnLoss::Plain);
        assert!(!links.are_settled());
        assert_eq!(
            links.verdict(),
            "Autoregressive: endpoint draft-1 not connected yet"
        );
        links.note(1, report(&[LinkState::Refused("other words".into())]));
        assert!(links.are_settled());
        assert_eq!(
            links.verdict(),
            "Autoregressive: endpoint draft-1 refused: other words"
        );
        links.note(1, report(&[LinkState::Up]));
        assert_eq!(links.verdict(), "Speculative");
        links.forget(1);
        assert!(!links.are_settled());
    }

    #[test]
    fn a_draft_that_cannot_start_is_done_without_and_a_target_is_not() {
        let mut links = links(2, OnLoss::Plain);
        let none = LinkState::Down("nobody listens".into());
        links.note(2, report(&[none, LinkState::Up]));
        assert!(!links.are_settled());
        assert!(links.fail(0, "exit status: 1".into()));
        assert!(links.has_failed(0) && !links.has_failed(1));
        assert!(links.are_settled());
        assert_eq!(
            links.verdict(),
            "Speculative; endpoint draft-1 could not start: exit status: 1"
        );
        assert!(!links.fail(2, "exit status: 1".into()));
    }

    #[test]
    fn where_the_targets_host_stands_in_that_is_said() {
        let mut links = links(1, OnLoss::Local);
        links.note(1, report(&[LinkState::Down("gone".into())]));
        assert_eq!(
            links.verdict(),
            "local proposals: endpoint draft-1 not connected: gone"
        );
        let none = self::links(0, OnLoss::Local);
        assert!(none.are_settled());
        assert_eq!(none.verdict(), "local proposals: no endpoints");
    }

    #[test]
    fn one_of_two_endpoints_is_enough_and_the_other_is_named() {
        let mut links = links(2, OnLoss::Plain);
        links.note(2, report(&[LinkState::Up, LinkState::Down("gone".into())]));
        assert!(!links.are_settled(), "a lost link may come back");
        assert_eq!(
            links.verdict(),
            "Speculative; endpoint draft-2 not connected: gone"
        );
    }
}
