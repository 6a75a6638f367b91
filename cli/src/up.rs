//! `foretoken up`: a file of objects on one machine, as processes instead of pods.
//!
//! ```text
//! file --Manifest--> Plan --render--> configurations --supervise--> router, targets, drafts
//! ```
//!
//! The processes are this same executable and talk over Unix sockets in the state folder. What
//! dies is started again. A target or router that cannot start at all ends everything; without a draft
//! requests are served all the same. Ctrl-C drains: the router finishes its streams, then targets and
//! drafts stop. A second Ctrl-C stops at once.
//!
//! Not here: what a service does (`target`, `draft`, `router`).

use std::{
    fs,
    io::ErrorKind,
    net::{TcpListener, ToSocketAddrs as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use foretoken_crds::{Manifest, Problem, object};
use foretoken_router::RouterConfig;

mod console;
mod greeting;
mod links;
mod plan;
mod process;
mod render;
pub(crate) mod state;
mod supervise;

pub(crate) use self::plan::uri;
use self::{console::Console, plan::Plan, render::Tuning, state::StateFolder};
use crate::{
    check::{describe, folder_of, needs_of_up, read},
    child::{self, HttpArgs},
    failure::{UsageError, usage},
    model::{Part, check_instructions, mib, resolve, threads},
    output::remark,
    shipped::Shipped,
};

/// Arguments of `foretoken up`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File with a SpecDecodeDeployment and the SpeculationEndpoints it uses [default: that of the small
    /// pair of models that comes with foretoken]
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// Port of the HTTP API; 0: any free one
    #[arg(short, long, default_value_t = 8000)]
    port: u16,
    /// Address of the HTTP API
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    #[command(flatten)]
    http: HttpArgs,
    /// Folder for sockets and configurations [default: foretoken/NAME among the user's state]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Which deployment, if the file has several
    #[arg(long)]
    name: Option<String>,
    /// Threads of each target [default: one per core; with SSD, whose drafts compute at the same time, one
    /// per core that a draft leaves]
    #[arg(long, value_name = "N", value_parser = threads())]
    target_threads: Option<usize>,
    /// Threads of each draft [default: one for every four cores]
    #[arg(long, value_name = "N", value_parser = threads())]
    draft_threads: Option<usize>,
    /// MiB for keys and values of each target, which bound how long requests may be together [default:
    /// what the file says, or 512]
    #[arg(long, value_name = "MIB", value_parser = mib())]
    target_kv_mib: Option<u64>,
    /// The same of each draft [default: what the file says, or 512]
    #[arg(long, value_name = "MIB", value_parser = mib())]
    draft_kv_mib: Option<u64>,
    /// Do not keep keys and values between requests, for comparisons
    #[arg(long)]
    no_prefix_cache: bool,
}

/// Runs everything until it is told to stop.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    check_instructions()?;
    let mut plan = read_plan(args)?;
    let address = free_address(&args.host, args.port)?;
    let router = router(&plan, &args.http, &address)?;
    let state = StateFolder::open(args.state_dir.as_deref(), &plan.name)?;
    let runtime = child::small_runtime()?;
    for model in plan.models_mut() {
        let uri = &mut model.uri;
        let part = if model.is_simulated {
            Part::Text
        } else {
            Part::All
        };
        // One download here instead of one in each process.
        let folder = runtime.block_on(resolve(uri, part))?;
        let folder = fs::canonicalize(&folder)
            .with_context(|| format!("cannot find {}", folder.display()))?;
        folder
            .to_str()
            .context("the path of a model must be UTF-8")?
            .clone_into(uri);
    }
    let Args {
        target_threads,
        draft_threads,
        target_kv_mib,
        draft_kv_mib,
        no_prefix_cache,
        ..
    } = args;
    let tuning = Tuning {
        target_threads: *target_threads,
        draft_threads: *draft_threads,
        target_kv_mib: *target_kv_mib,
        draft_kv_mib: *draft_kv_mib,
        prefix_cache: !no_prefix_cache,
    };
    let programs = render::render(&plan, &state, router, tuning)?;
    let console = Console::new(programs.iter().map(|program| program.name.as_str()));
    runtime.block_on(supervise::supervise(
        &plan,
        &address,
        args.http.have_keys(),
        programs,
        &state,
        &console,
    ))
}

/// Where the `up` of a file keeps its state, unless it was told another place.
pub(crate) fn folder_for(file: &Path, name: Option<&str>) -> anyhow::Result<PathBuf> {
    let manifest =
        Manifest::parse(&read(file)?).map_err(|invalid| explain(file, &invalid.problems))?;
    let chosen = plan::choose(&manifest, name).map_err(|problem| explain(file, &[problem]))?;
    Ok(state::default_folder(object::name(&chosen.object.metadata)))
}

/// Reads the file; problems are printed with their lines.
fn read_plan(args: &Args) -> anyhow::Result<Plan> {
    let file = &match &args.file {
        Some(file) => file.clone(),
        None => shipped_file()?,
    };
    let manifest =
        Manifest::parse(&read(file)?).map_err(|invalid| explain(file, &invalid.problems))?;
    let folder = folder_of(file);
    let needs = needs_of_up(&manifest, folder);
    if !needs.is_empty() {
        return Err(explain(file, &needs));
    }
    let name = args.name.as_deref();
    let plan = Plan::new(&manifest, folder, name).map_err(|problem| explain(file, &[problem]))?;
    if plan.asks_for_keys && !args.http.have_keys() {
        return Err(usage(format!(
            "{} asks for API keys (spec.router.apiKeys) of a Secret, which only a cluster has: give \
             them with --api-key, --api-keys-from or FORETOKEN_API_KEY",
            file.display()
        )));
    }
    Ok(plan)
}

/// What the router is told besides who exists: what the file says, and in its place what flags say.
fn router(plan: &Plan, flags: &HttpArgs, listen: &str) -> anyhow::Result<RouterConfig> {
    let mut config = RouterConfig {
        listen: listen.to_owned(),
        ..plan.router.clone()
    };
    flags.overrides(&mut config)?;
    if let Some(path) = &mut config.api_keys_from {
        // Links in it stay: keys are changed by changing where they lead.
        *path = std::path::absolute(&*path)
            .map_err(|error| usage(format!("cannot read {}: {error}", path.display())))?;
    }
    Ok(config)
}

/// The file of the models that come with foretoken.
fn shipped_file() -> anyhow::Result<PathBuf> {
    let file = Shipped::unpack()?.manifest();
    remark(format_args!(
        "no --file: serving the small pair of models that comes with foretoken, {}",
        file.display()
    ));
    Ok(file)
}

fn explain(file: &Path, problems: &[Problem]) -> anyhow::Error {
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| describe(file, problem, ""))
        .collect();
    UsageError(format!(
        "{} cannot be served\n{}",
        file.display(),
        lines.join("\n")
    ))
    .into()
}

/// `host:port` with a port that was free just now, chosen if `port` is 0.
fn free_address(host: &str, port: u16) -> anyhow::Result<String> {
    let bracketed = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let resolved = (host, port)
        .to_socket_addrs()
        .map_err(|error| {
            usage(format!(
                "--host {host} is no address of this machine: {error}"
            ))
        })?
        .next()
        .ok_or_else(|| usage(format!("--host {host} is no address of this machine")))?;
    let listener = TcpListener::bind(resolved).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrNotAvailable => "--host has to be an address of this machine",
            ErrorKind::PermissionDenied => "choose a port from 1024 on with --port",
            _ => "stop what uses it, or choose another with --port",
        };
        anyhow::anyhow!("cannot listen on {bracketed}:{port}: {error}; {hint}")
    })?;
    let port = listener
        .local_addr()
        .context("cannot see the chosen port")?
        .port();
    Ok(format!("{bracketed}:{port}"))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    const ANY: &str = "apiVersion: foretoken.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {name: a}
spec: {model: {uri: /m}, router: {allowedOrigins: [\"https://chat.example.com\"]}}
";

    fn flags(said: &[&str]) -> HttpArgs {
        let words = ["up"].iter().chain(said);
        let matches = HttpArgs::augment_args(Command::new("up")).get_matches_from(words);
        HttpArgs::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn pages_that_may_ask_are_those_of_the_file_unless_flags_say() {
        let manifest = Manifest::parse(ANY).unwrap();
        let plan = Plan::new(&manifest, Path::new("/"), None).unwrap();
        let allowed = |said: &[&str]| {
            let config = router(&plan, &flags(said), "127.0.0.1:1").unwrap();
            assert_eq!(config.listen, "127.0.0.1:1");
            config.allowed_origins
        };
        assert_eq!(allowed(&[]), ["https://chat.example.com"]);
        assert_eq!(
            allowed(&["--allowed-origin", "http://h:3000"]),
            ["http://h:3000"]
        );
    }

    #[test]
    fn keys_are_read_where_links_lead_and_not_where_they_led() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["keys.v1", "keys"].map(|name| folder.path().join(name));
        fs::write(&file, "secret").unwrap();
        std::os::unix::fs::symlink("keys.v1", &link).unwrap();
        let manifest = Manifest::parse(ANY).unwrap();
        let plan = Plan::new(&manifest, Path::new("/"), None).unwrap();
        let flags = flags(&["--api-keys-from", link.to_str().unwrap()]);
        let config = router(&plan, &flags, "127.0.0.1:1").unwrap();
        assert_eq!(config.api_keys_from, Some(link));
    }

    #[test]
    fn a_port_in_use_is_named_with_what_to_do() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = holder.local_addr().unwrap().port();
        let message = free_address("127.0.0.1", port).unwrap_err().to_string();
        assert!(message.contains(&format!("127.0.0.1:{port}")), "{message}");
        assert!(message.contains("--port"), "{message}");
    }

    #[test]
    fn an_address_of_another_machine_is_not_taken_for_a_port_in_use() {
        // For documentation alone (RFC 5737): nobody has it.
        let message = free_address("192.0.2.1", 8000).unwrap_err().to_string();
        assert!(message.contains("192.0.2.1:8000"), "{message}");
        assert!(message.contains("--host has to be"), "{message}");
    }

    #[test]
    fn port_0_is_replaced_by_a_free_one() {
        let address = free_address("127.0.0.1", 0).unwrap();
        assert!(!address.ends_with(":0"), "{address}");
    }
}
