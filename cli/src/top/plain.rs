//! What is shown, as words; the screen has the same.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    board::{Bar, ServiceView, SessionView, Snapshot},
    figures::Figures,
};

/// Heights of bars.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Sessions that a text shows; JSON has them all.
const LISTED: usize = 20;

/// Names of the figures, and their values over the latest interval and since the beginning.
pub(super) fn figures(snapshot: &Snapshot) -> Vec<[String; 3]> {
    let Snapshot { now, all, .. } = snapshot;
    let row = |name: &str, of: &dyn Fn(&Figures) -> String| [name.to_owned(), of(now), of(all)];
    vec![
        row("tokens/s", &|f| format!("{:.0}", f.tokens_per_second)),
        row("tokens a window emits", &|f| number(f.acceptance_length, 2)),
        row("hit rate", &|f| percent(f.hit_rate)),
        row("hit rate, later rounds", &|f| percent(f.later_hit_rate)),
        row("draft time hidden", &|f| percent(f.hidden_share)),
        row("extra time of hit rounds", &|f| {
            f.hit_round_extra
                .map_or_else(none, |extra| format!("+{:.1} %", extra * 100.0))
        }),
        row("bytes a round", &|f| number(f.bytes_per_round, 0)),
        row("outcomes, place of hits", &|f| {
            let (outcomes, place) = (f.outcomes_per_build, f.hit_place);
            format!("{}, {}", number(outcomes, 1), number(place, 1))
        }),
        row("rank of decided tokens", &|f| number(f.decided_rank, 2)),
        row("drafted ahead and used", &|f| percent(f.used_share)),
        row("late windows", &|f| format!("{:.0}", f.late)),
        row("windows of SSD from", &|f| shares(&f.sources)),
        row("lookahead bound by", &|f| shares(&f.lookahead_limits)),
        row("outcomes bound by", &|f| shares(&f.build_limits)),
    ]
}

/// A line about all requests.
pub(super) fn requests(snapshot: &Snapshot) -> String {
    let requests = snapshot.requests;
    let mut line = format!(
        "{} running, {} waiting, {} parked",
        requests.running, requests.waiting, requests.parked
    );
    if snapshot.missed_events > 0 {
        let _ = write!(line, "; {} events not shown", snapshot.missed_events);
    }
    line
}

/// Columns of the services.
pub(super) const SERVICE_COLUMNS: [&str; 6] =
    ["service", "kind", "tokens/s", "sessions", "links", "pages"];

/// A service in these columns; one that cannot be asked has its trouble instead.
pub(super) fn service(service: &ServiceView) -> Result<[String; 6], [String; 2]> {
    if let Some(trouble) = &service.trouble {
        let trouble = format!("{trouble}; trying again");
        return Err([service.name.clone(), trouble]);
    }
    Ok([
        service.name.clone(),
        service.kind.clone().unwrap_or_else(|| "?".into()),
        format!("{:.0}", service.tokens_per_second),
        service.sessions.to_string(),
        service.links.map_or_else(none, |links| links.to_string()),
        percent(service.kv_usage),
    ])
}

/// Columns of the sessions, before their rounds.
pub(super) const SESSION_COLUMNS: [&str; 7] = [
    "session", "target", "policy", "rounds", "tokens", "ahead", "ms",
];

/// A session in these columns.
pub(super) fn session(session: &SessionView) -> [String; 7] {
    [
        session.session.to_string(),
        session.target.clone(),
        session.policy.clone(),
        session.rounds.to_string(),
        session.tokens.to_string(),
        percent(session.ahead_share),
        number(session.round_ms, 2),
    ]
}

/// A round as a letter: the more was accepted of it, the higher. A round without a window is a
/// dot.
pub(super) fn bar(bar: &Bar) -> char {
    if bar.window == 0 {
        return '·';
    }
    let top = BARS.len() - 1;
    let height = bar.accepted as usize * top / bar.window as usize;
    BARS[height.min(top)]
}

/// All of it.
pub(super) fn text(snapshot: &Snapshot) -> String {
    let mut text = requests(snapshot) + "\n\n";
    let _ = writeln!(text, "{:26}{:>24}{:>24}", "", "now", "since start");
    for [name, now, all] in figures(snapshot) {
        let _ = writeln!(text, "{name:26}{now:>24}{all:>24}");
    }
    text.push('\n');
    let [name, rest @ ..] = SERVICE_COLUMNS;
    let _ = writeln!(text, "{name:24}{}", columns(&rest));
    for view in &snapshot.services {
        let _ = match service(view) {
            Ok([name, rest @ ..]) => writeln!(text, "{name:24}{}", columns(&rest)),
            Err([name, trouble]) => writeln!(text, "{name:24}{trouble}"),
        };
    }
    if !snapshot.sessions.is_empty() {
        let _ = writeln!(text, "\n{}accepted by round", columns(&SESSION_COLUMNS));
    }
    for view in snapshot.sessions.iter().take(LISTED) {
        let bars: String = view.recent.iter().map(bar).collect();
        let _ = writeln!(text, "{}{bars}", columns(&session(view)));
    }
    if snapshot.sessions.len() > LISTED {
        let _ = writeln!(text, "and {} more", snapshot.sessions.len() - LISTED);
    }
    text
}

/// Why nothing can be shown.
pub(super) fn troubles(snapshot: &Snapshot) -> String {
    let lines: Vec<String> = snapshot
        .services
        .iter()
        .map(|service| {
            let why = "it is no service of Foretoken".to_owned();
            let why = service.trouble.clone().unwrap_or(why);
            format!("cannot watch {} at {}: {why}", service.name, service.url)
        })
        .collect();
    if lines.is_empty() {
        "there is no service to watch".into()
    } else {
        lines.join("\n")
    }
}

fn columns<T: AsRef<str>>(cells: &[T]) -> String {
    let cell = |cell: &T| format!("{:<12} ", cell.as_ref());
    cells.iter().map(cell).collect()
}

fn none() -> String {
    "-".into()
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(none, |value| format!("{value:.digits$}"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(none, |value| format!("{:.1} %", value * 100.0))
}

/// The largest two.
fn shares(shares: &BTreeMap<String, f64>) -> String {
    let mut shares: Vec<_> = shares.iter().collect();
    shares.sort_by(|a, b| b.1.total_cmp(a.1));
    let told: Vec<String> = shares
        .iter()
        .take(2)
        .map(|(name, share)| format!("{name} {:.0} %", *share * 100.0))
        .collect();
    if told.is_empty() {
        none()
    } else {
        told.join(", ")
    }
}
