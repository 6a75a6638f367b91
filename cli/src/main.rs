//! Process entry point: parse, run the command, exit with its code.
#![expect(
    clippy::doc_markdown,
    reason = "docs of arguments are help texts, shown as they are"
)]
// These panic where nobody reads or nothing has room: `output` is for that.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod chat;
mod check;
mod child;
mod command;
mod crd;
mod draft;
mod failure;
mod fetch;
mod generate;
mod group;
mod logging;
mod model;
mod operator;
mod output;
mod registry;
mod report;
mod router;
mod service;
mod shipped;
mod stop;
mod target;
mod top;
mod up;

use std::process::ExitCode;

fn main() -> ExitCode {
    match command::Cli::parse_or_explain() {
        Ok(cli) => failure::exit_code(stop::watch_if_first().and_then(|()| cli.run())),
        Err(code) => code,
    }
}
