//! Whatever targets do, in whatever order: what an endpoint sends for a session is drafted from the
//! tokens of that session, and nothing is left behind.

use std::collections::HashMap;

use foretoken_engine::batch::SeqId;
use foretoken_speculation::{guess::OutcomeKey, message::Entries, noise::philox};

use super::{branches::open_ahead, *};

const LINKS: [LinkId; 3] = [A, B, LinkId(3)];
const K: u32 = 3;

/// A target's view of one of its sessions.
struct View {
    seed: u64,
    round: u32,
    tokens: Vec<TokenId>,
    /// Under verification.
    window: Vec<TokenId>,
    /// What came for the round under verification, and of outcomes that were begun late.
    series: [Series; 2],
}

#[derive(Default)]
struct Series {
    keys: Vec<OutcomeKey>,
    columns: Vec<Vec<TokenId>>,
}

impl View {
    /// Checks a part of entries token by token; says how many it has.
    fn check(&mut self, part: &Entries) -> usize {
        if part.round.0 != self.round || part.base_len as usize != self.tokens.len() {
            return 0;
        }
        let series = &mut self.series[usize::from(part.late)];
        if part.before == 0 {
            series.keys.clone_from(&part.keys);
            series.columns.clear();
        }
        assert_eq!(series.columns.len(), part.before as usize);
        for (place, &token) in part.tokens.iter().enumerate() {
            let key = series.keys[place];
            let own = series.columns.iter().map(|column| column[place]);
            let accepted = &self.window[..key.accepted as usize];
            let mut context = [&self.tokens[..], accepted, &[key.token]].concat();
            context.extend(own);
            let expected = continuation(language(), self.seed, &context, 1);
            assert_eq!(expected, [token], "of another session");
        }
        series.columns.push(part.tokens.clone());
        part.tokens.len()
    }
}

struct World {
    rig: Rig,
    views: HashMap<(LinkId, u64), View>,
    draws: u32,
    opened: u64,
    checked: usize,
}

impl World {
    fn draw(&mut self, below: u32) -> u32 {
        self.draws += 1;
        philox([self.draws, 0, 0, 0], [3, 5])[0] % below
    }

    /// Sends what is due to the targets, which look at it.
    fn collect(&mut self) {
        for (link, message) in self.rig.collect() {
            let id = |session: SessionId| (link, session.0);
            match message {
                ToTarget::Entries(part) => {
                    if let Some(view) = self.views.get_mut(&id(part.session)) {
                        self.checked += view.check(&part);
                    }
                }
                ToTarget::Window(window) => {
                    let Some(view) = self.views.get_mut(&id(window.session)) else {
                        continue;
                    };
                    if window.round.0 == view.round && view.window.is_empty() {
                        let drafted = window.proposals.tokens();
                        let expected =
                            continuation(language(), view.seed, &view.tokens, drafted.len());
                        assert_eq!(drafted, expected, "a window of another session");
                        view.window = expected;
                    }
                }
                ToTarget::Refused { session, .. } => drop(self.views.remove(&id(session))),
                ToTarget::Resync(resync) => panic!("nothing was lost: {resync:?}"),
                ToTarget::Opened { .. } | ToTarget::Account(_) => {}
            }
        }
    }

    fn join(&mut self) {
        let link = LINKS[self.draw(3) as usize];
        self.opened += 1;
        let id = self.opened;
        let (len, start) = (5 + self.draw(30), self.draw(64));
        // Prompts share prefixes, so that sessions share pages.
        let mut tokens = prompt(len);
        tokens.push(TokenId(start));
        self.rig.tell(link, open_ahead(id, tokens.clone()));
        let view = View {
            seed: id,
            round: 0,
            tokens,
            window: Vec::new(),
            series: Default::default(),
        };
        self.views.insert((link, id), view);
    }

    /// A verdict on some session, a hit where it can be one.
    fn decide(&mut self, link: LinkId, id: u64) {
        let (asks, hits) = (self.draw(4) == 0, self.draw(4) > 0);
        let (place, token) = (self.draw(64) as usize, self.draw(64));
        let Some(view) = self.views.get_mut(&(link, id)) else {
            return;
        };
        let keys = view.series.iter().flat_map(|series| series.keys.iter());
        let keys: Vec<_> = keys.copied().collect();
        let some = keys.get(place % keys.len().max(1)).copied();
        let key = some.filter(|_| hits).unwrap_or(OutcomeKey {
            accepted: 0,
            token: TokenId(token),
        });
        let mut emitted = view.window[..key.accepted as usize].to_vec();
        emitted.push(key.token);
        let place = |series: &Series| series.keys.iter().position(|known| *known == key);
        let mut found = view.series.iter();
        let found = found.find_map(|series| Some((series, place(series)?)));
        let next: Vec<TokenId> = found.map_or_else(Vec::new, |(series, place)| {
            let columns = series.columns.iter();
            columns
                .map_while(|column| column.get(place).copied())
                .collect()
        });
        let message = Outcome {
            session: SessionId(id),
            epoch: Epoch(1),
            round: Round(view.round),
            base_len: view.tokens.len() as u32,
            tokens: emitted.clone(),
            lookahead: K,
            verifying: (!asks).then(|| next.clone().into()),
            branches: 8,
            ..Outcome::default()
        };
        view.round += 1;
        view.tokens.extend(emitted);
        view.window = if asks { Vec::new() } else { next };
        view.series = Default::default();
        self.rig.tell(link, ToDraft::Outcome(message));
    }

    fn leave(&mut self, link: LinkId, id: u64) {
        self.views.remove(&(link, id));
        let (session, epoch) = (SessionId(id), Epoch(1));
        self.rig.tell(link, ToDraft::Close { session, epoch });
    }

    /// A target dies, and another one dials.
    fn lose(&mut self, link: LinkId) {
        self.views.retain(|(of, _), _| *of != link);
        let reason = "gone".into();
        self.rig.worker.take(0, ServerEvent::Down { link, reason });
        let hello = Hello::default();
        self.rig.worker.take(0, ServerEvent::Up { link, hello });
    }
}

#[test]
fn entries_are_of_their_own_session_whoever_joins_leaves_and_dies() {
    let checked = live_with(SimOptions::default().pages);
    assert!(checked > 3000, "{checked} tokens of entries");
}

#[test]
fn entries_are_of_their_own_session_whoever_has_to_make_room() {
    let checked = live_with(12);
    assert!(checked > 1000, "{checked} tokens of entries");
}

/// Joins, leaves and deaths where there are so many pages; says how many tokens of entries came.
fn live_with(pages: usize) -> usize {
    let config = DraftConfig {
        max_sessions: 9,
        ..DraftConfig::default()
    };
    let options = SimOptions {
        pages,
        ..language()
    };
    let mut world = World {
        rig: Rig::new(&config, options),
        views: HashMap::new(),
        draws: 0,
        opened: 0,
        checked: 0,
    };
    world.lose(LINKS[2]);
    for _ in 0..1200 {
        let known = world.views.len() as u32;
        let chosen = world.draw(known.max(1)) as usize;
        // The order of a map is not that of the next run.
        let mut names: Vec<_> = world.views.keys().copied().collect();
        names.sort_unstable();
        match (world.draw(40), names.get(chosen).copied()) {
            (0, _) => {
                let link = LINKS[world.draw(3) as usize];
                world.lose(link);
            }
            (1..5, _) | (_, None) => world.join(),
            (5..7, Some((link, id))) => world.leave(link, id),
            (7..20, Some((link, id))) => world.decide(link, id),
            (_, Some(_)) => drop(world.rig.worker.step()),
        }
        world.collect();
        let worker = &world.rig.worker;
        assert!(worker.sessions.len() <= 9);
        for session in &worker.sessions {
            let mut all = worker.held().all;
            let pages = |&seq: &SeqId| worker.engine.pages(seq).expect("it is open");
            let seqs = session.forks.seqs().iter();
            let owned: usize = seqs.map(|seq| all.take(pages(seq))).sum();
            assert_eq!(owned, session.forks.pages(), "pages of branches");
        }
    }
    world.rig.settle();
    for link in LINKS {
        world.lose(link);
    }
    world.rig.assert_idle();
    assert!(world.rig.worker.engine.audit().is_ok());
    world.checked
}
