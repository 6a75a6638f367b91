//! `foretoken top`: what runs, round by round.
//!
//! ```text
//! state.json of `up`, or --address --> places --> watch: /metrics now and then, /rounds as they come
//!                                                   '--> board --> snapshot --> screen | text | JSON
//! ```
//!
//! Nothing is asked of a service but what anybody may ask of its observation port. One that cannot
//! be reached is shown as such and asked again.

mod board;
mod counts;
mod figures;
mod places;
mod plain;
mod scrape;
mod screen;
mod session;
mod terminal;
mod watch;

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use self::{board::Board, places::Places, watch::News};
use crate::{failure::usage, output};

/// Arguments of `foretoken top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// URL where a target, draft or router shows its metrics; repeatable [default: all services of
    /// the `foretoken up` that runs on this machine]
    #[arg(long, value_name = "URL", conflicts_with_all = ["file", "state_dir", "name"])]
    address: Vec<String>,
    /// File that `foretoken up` runs
    #[arg(short, long, conflicts_with = "state_dir")]
    file: Option<PathBuf>,
    /// State folder of `foretoken up`, if it has one of its own
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    state_dir: Option<PathBuf>,
    /// Which deployment, if several run
    #[arg(long)]
    name: Option<String>,
    /// Watch for one interval, print what happened and end
    #[arg(long)]
    once: bool,
    /// Print JSON, one object an interval
    #[arg(long)]
    json: bool,
    /// Seconds between two looks at the metrics
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
}

/// Watches until told to stop, or once.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if !(0.1..=3600.0).contains(&args.interval) {
        return Err(usage("--interval must be from 0.1 to 3600 seconds"));
    }
    let interval = Duration::from_secs_f64(args.interval);
    let places = Places::find(args)?;
    let (news, inbox) = mpsc::sync_channel(watch::MOST);
    watch::start(places, interval, news)?;
    let board = Board::default();
    if args.once || args.json || !io::stdout().is_terminal() {
        return print(args, interval, board, &inbox);
    }
    terminal::show(board, &inbox)
}

/// Prints what each interval came to.
fn print(
    args: &Args,
    interval: Duration,
    mut board: Board,
    inbox: &mpsc::Receiver<News>,
) -> anyhow::Result<()> {
    loop {
        // Rates take two looks.
        let mut until = Instant::now() + interval;
        let patience = Instant::now() + 3 * interval + Duration::from_secs(3);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match inbox.recv_timeout(left) {
                Ok(News::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(news) => board.note(news),
                Err(_) if board.has_rates() || Instant::now() > patience => break,
                Err(_) => until = Instant::now() + Duration::from_millis(50),
            }
        }
        let snapshot = board.snapshot();
        if args.once && !snapshot.is_anything_up() {
            return Err(anyhow::anyhow!("{}", plain::troubles(&snapshot)));
        }
        let text = if args.json {
            serde_json::to_string(&snapshot)? + "\n"
        } else {
            plain::text(&snapshot)
        };
        output::print(&text)?;
        if args.once {
            return Ok(());
        }
    }
}
