//! The commands there are.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{
    chat, check, child, crd, draft, failure, fetch, generate, logging, operator, router,
    shipped::Shipped, target, top, up,
};

/// Speculative decoding whose draft and target are separate services.
#[derive(Debug, Parser)]
#[command(name = "foretoken", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a file's deployment on this machine: router, targets and drafts
    Up(up::Args),
    /// Check a file of objects and print every mistake with its line
    Check(check::Args),
    /// Print the definitions of our kinds, to be installed into a cluster
    Crd(crd::Args),
    /// Download a model of the hub
    Fetch(fetch::Args),
    /// Talk to a server in the terminal
    Chat(chat::Args),
    /// Watch what runs: rounds as they happen, hit rates, what was in the way of more
    Top(top::Args),
    /// Complete one prompt in this process, without services
    Generate(Box<generate::Args>),
    /// Run a target: the model that decides every token
    Target(Box<target::Args>),
    /// Run a speculation endpoint: a draft model that proposes tokens to targets
    Draft(Box<draft::Args>),
    /// Run a router: OpenAI's HTTP API in front of targets
    Router(Box<router::Args>),
    /// Run the operator: makes a Kubernetes cluster what its objects say
    Operator(operator::Args),
    /// Measure; the results go to target/bench below where it is run
    Bench(foretoken_bench::BenchArgs),
}

impl Cli {
    /// Parses the command line. Help and version are printed and succeed; a mistake is explained
    /// and ends with the exit code of bad usage.
    pub(crate) fn parse_or_explain() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| {
            // The stream it goes to may be closed; there is nobody left to tell.
            let _ = error.print();
            if error.use_stderr() {
                ExitCode::from(failure::USAGE)
            } else {
                ExitCode::SUCCESS
            }
        })
    }

    /// Runs the command to its end.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Up(args) => up::run(&args),
            Command::Router(args) => {
                logging::init("info");
                router::run(*args)
            }
            Command::Check(args) => check::run(&args),
            Command::Crd(args) => crd::run(&args),
            Command::Fetch(args) => fetch::run(&args),
            Command::Target(args) => {
                logging::init("info");
                target::run(*args)
            }
            Command::Draft(args) => {
                logging::init("info");
                draft::run(*args)
            }
            Command::Operator(args) => {
                logging::init("info");
                operator::run(args)
            }
            Command::Chat(args) => chat::run(&args),
            Command::Top(args) => top::run(&args),
            Command::Bench(args) => child::small_runtime()?
                .block_on(foretoken_bench::run(&args, || {
                    Ok(Shipped::unpack()?.models())
                })),
            Command::Generate(args) => {
                logging::init("warn");
                generate::run(&args)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use foretoken_draft::DraftConfig;
    use foretoken_target::{PolicyName, TargetConfig};

    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Cli::command().debug_assert();
    }

    /// Flags whose defaults are those of a configuration, which clap does not know.
    #[test]
    fn help_tells_the_defaults_that_services_have() {
        let (target, draft) = (TargetConfig::default(), DraftConfig::default());
        let (plain, ssd) = (target.lookahead, target.ssd.lookahead);
        assert_eq!(target.policy, PolicyName::Speculative);
        assert_eq!((target.metrics_listen, draft.metrics_listen), (None, None));
        let own = |text: &str| text.to_owned();
        for (command, flag, default) in [
            ("target", "policy", own("Speculative")),
            ("target", "lookahead", format!("{plain}, {ssd} with SSD")),
            ("target", "instance", target.instance),
            ("target", "dtype", own("bf16")),
            ("target", "metrics_listen", own("nowhere")),
            ("draft", "instance", draft.instance),
            ("draft", "max_sessions", draft.max_sessions.to_string()),
            ("draft", "dtype", own("int8")),
            ("generate", "dtype", own("bf16; those of the draft: int8")),
        ] {
            let cli = Cli::command();
            let command = cli.find_subcommand(command).unwrap();
            let mut flags = command.get_arguments();
            let found = flags.find(|known| known.get_id() == flag).unwrap();
            let help = found.get_help().unwrap().to_string();
            let default = format!("[default: {default}]");
            assert!(help.ends_with(&default), "{flag}: {help} {default}");
        }
    }
}
