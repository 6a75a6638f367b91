//! Which services there are to watch.

use std::path::PathBuf;

use super::Args;
use crate::{
    failure::usage,
    up::{self, state},
};

/// A service to watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// What it is called here.
    pub(super) name: String,
    /// Where it shows its metrics, without a slash at the end.
    pub(super) url: String,
}

/// Where the list of services comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Places {
    /// The command line.
    Given(Vec<Place>),
    /// The state folder of a running `up`: services that are started again have new ports.
    Up(PathBuf),
}

impl Places {
    /// What the arguments name, or the only `up` that runs.
    pub(super) fn find(args: &Args) -> anyhow::Result<Self> {
        if !args.address.is_empty() {
            let places = args.address.iter().map(|url| given(url));
            return Ok(Self::Given(places.collect::<anyhow::Result<_>>()?));
        }
        let folder = match (&args.state_dir, &args.file, &args.name) {
            (Some(folder), _, _) => Some(folder.clone()),
            (None, Some(file), name) => Some(up::folder_for(file, name.as_deref())?),
            (None, None, Some(name)) => Some(state::default_folder(name)),
            (None, None, None) => None,
        };
        match folder {
            Some(folder) if state::is_in_use(&folder) => Ok(Self::Up(folder)),
            Some(folder) => Err(anyhow::anyhow!(
                "no `foretoken up` uses {}: start one, or name services with --address",
                folder.display()
            )),
            None => the_only(&state::folders_in_use()),
        }
    }

    /// The services now. An `up` that has ended has none.
    pub(super) fn now(&self) -> Vec<Place> {
        match self {
            Self::Given(places) => places.clone(),
            Self::Up(folder) => state::read(folder).map_or_else(Vec::new, |state| {
                let place = |service: &state::ServiceState| {
                    Some(Place {
                        name: service.name.clone(),
                        url: service.metrics.clone()?,
                    })
                };
                state.services.iter().filter_map(place).collect()
            }),
        }
    }
}

fn the_only(folders: &[PathBuf]) -> anyhow::Result<Places> {
    let name = |folder: &PathBuf| -> String {
        let name = folder.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    match folders {
        [only] => Ok(Places::Up(only.clone())),
        [] => Err(anyhow::anyhow!(
            "no `foretoken up` runs on this machine, or it has a --state-dir of its own: name \
             that, or services with --address"
        )),
        several => {
            let names: Vec<String> = several.iter().map(name).collect();
            Err(usage(format!(
                "several deployments run: choose with --name among {}",
                names.join(", ")
            )))
        }
    }
}

/// An address as people write it.
fn given(address: &str) -> anyhow::Result<Place> {
    let name = match address.split_once("://") {
        Some(("http", name)) => name,
        Some(_) => return Err(usage(format!("{address} must begin with http://"))),
        None => address,
    };
    let name = name.trim_end_matches('/').trim_end_matches("/metrics");
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(usage(format!("{address:?} is no address")));
    }
    Ok(Place {
        name: name.to_owned(),
        url: format!("http://{name}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_people_write_them() {
        for address in ["h:1", "http://h:1", "http://h:1/", "http://h:1/metrics"] {
            let place = given(address).unwrap();
            assert_eq!(
                (place.name.as_str(), place.url.as_str()),
                ("h:1", "http://h:1")
            );
        }
        for address in ["https://h:1", "", "a b"] {
            assert!(given(address).is_err(), "{address}");
        }
    }

    #[test]
    fn of_several_that_run_one_must_be_named() {
        let folders = [PathBuf::from("/s/a"), PathBuf::from("/s/b")];
        let error = the_only(&folders).unwrap_err().to_string();
        assert!(error.contains("--name among a, b"), "{error}");
        assert_eq!(the_only(&folders[..1]).unwrap(), Places::Up("/s/a".into()));
        assert!(the_only(&[]).unwrap_err().to_string().contains("--address"));
    }
}
