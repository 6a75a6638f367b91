//! What is told about objects. Pure: from what was observed, and what was told before.

mod condition;
mod deployment;
mod endpoint;
mod rollout;
mod speculation;
mod trouble;
mod workload;

pub use condition::{Change, Conditions, Failing, HasConditions, Refused, changes, is_urgent};
pub use deployment::{Observed, deployment};
pub use endpoint::{ObservedEndpoint, endpoint};
pub use trouble::{Trouble, cause, of_certificate, of_pod};
pub use workload::Workload;

pub(crate) use trouble::MODEL;

/// As many of a list as a status has room for, by name: those that come first by `rank`.
fn at_most<T, R: Ord>(
    mut list: Vec<T>,
    most: u32,
    rank: impl FnMut(&T) -> R,
    name: fn(&T) -> (&str, &str),
) -> Vec<T> {
    let most = most as usize;
    if list.len() > most {
        list.sort_by_key(rank);
        list.truncate(most);
        list.sort_by(|a, b| name(a).cmp(&name(b)));
    }
    list
}
