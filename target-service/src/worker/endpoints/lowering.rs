//! How much less endpoints draft of what they guess, where proposals are drawn (SSD, Definition 14):
//! chosen for each cohort by what it has learned.

use foretoken_speculation::{TokenId, fallback::Miss, saguaro::Saguaro};

use super::Endpoints;
use crate::{
    inbox::LinkKey,
    request::Request,
    worker::cohort::{Cohort, Learned},
};

impl Endpoints {
    /// Takes in what the window of `request` was drawn from by the endpoint of `link`, if it was drawn,
    /// and what this target makes of that; these of its tokens were accepted. Says how it was lowered then.
    pub(in crate::worker) fn observe_laws(
        &mut self,
        link: Option<LinkKey>,
        request: &Request,
        accepted: &[TokenId],
    ) -> Option<Saguaro> {
        let laws = request.session.laws();
        // There may have been no room for any of it.
        if laws.q.is_empty() || request.seen.is_empty() {
            return None;
        }
        let cohort = link.map(|link| request.cohort(link));
        if let Some(learned) = cohort.and_then(|cohort| self.learned_mut(cohort)) {
            // What was drawn beside the spine says nothing of what comes next on it.
            let window = request.session.window();
            let spine = window.spine().map(|node| window.token(node));
            let kept = spine
                .zip(accepted)
                .take_while(|(own, token)| *own == Some(**token));
            learned.tuner.observe(laws, &request.seen, kept.count());
        }
        Some(laws.saguaro)
    }

    /// Takes in whether the token that ended a window which was drawn had been guessed; `whole` if
    /// it came after all of the window.
    pub(in crate::worker) fn observe_guess(&mut self, cohort: Cohort, whole: bool, hit: bool) {
        if let Some(learned) = self.learned_mut(cohort) {
            learned.tuner.observe_verdict(whole, hit);
        }
    }

    /// How what is drawn for a request is to be lowered from now on.
    pub(in crate::worker) fn lower(&mut self, cohort: Cohort, miss: Miss) -> Saguaro {
        let mut list = self.list.iter_mut();
        let Some(endpoint) = list.find(|endpoint| endpoint.link == cohort.link) else {
            return Saguaro::default();
        };
        let Learned {
            controller,
            chooser,
            tuner,
            linger: _,
        } = endpoint.cohorts.of_mut(cohort);
        let situation = miss.situation(&self.steps, controller);
        let saguaro = tuner.choose(miss.lookahead, |primary| {
            chooser.backup(&situation, primary)
        });
        if let Some(c) = &endpoint.c {
            c.set(saguaro.c());
        }
        saguaro
    }
}
