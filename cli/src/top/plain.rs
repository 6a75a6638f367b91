//! What is shown, as words; the screen has the same.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    board::{ServiceView, Snapshot},
    figures::Figures,
    session::{Bar, SessionView},
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
        row("tokens/s", &|f| number(f.tokens_per_second, 0)),
        row("tokens a window emits", &|f| number(f.acceptance_length, 2)),
        row("hit rate", &|f| percent(f.hit_rate)),
        row("hit rate, later rounds", &|f| percent(f.later_hit_rate)),
        row("draft time hidden", &|f| percent(f.hidden_share)),
        row("extra time of hit rounds", &|f| extra(f.hit_round_extra)),
        row("bytes a round", &|f| number(f.bytes_per_round, 0)),
        row("outcomes, place of hits", &|f| {
            let (outcomes, place) = (f.outcomes_per_build, f.hit_place);
            format!("{}, {}", number(outcomes, 1), number(place, 1))
        }),
        row("rank of decided tokens", &|f| number(f.decided_rank, 2)),
        row("decided and not ranked", &|f| percent(f.unranked_share)),
        row("ahead: sent, used, late", &|f| {
            let entries = f.entry_tokens;
            let counts = [entries.pushed, entries.used, entries.late];
            if counts.iter().all(Option::is_none) {
                return none();
            }
            counts.map(short).join(", ")
        }),
        row("drafted ahead and used", &|f| percent(f.used_share)),
        row("late windows", &|f| number(f.late, 0)),
        row("ahead/remote/local/none", &|f| sources(&f.sources)),
        row("lookahead bound by", &|f| shares(&f.lookahead_limits)),
        row("outcomes bound by", &|f| shares(&f.build_limits)),
    ]
}

/// A line about all requests.
pub(super) fn requests(snapshot: &Snapshot) -> String {
    let requests = snapshot.requests;
    let [running, waiting, parked] =
        [requests.running, requests.waiting, requests.parked].map(whole);
    let mut line = format!("{running} running, {waiting} waiting, {parked} parked");
    if snapshot.missed_events > 0 {
        let _ = write!(line, "; {} events not shown", snapshot.missed_events);
    }
    line
}

/// Columns of the services, the most telling first: a narrow screen shows those.
pub(super) const SERVICE_COLUMNS: [&str; 6] =
    ["service", "tokens/s", "kind", "sessions", "links", "pages"];

/// A service in these columns; one that cannot be asked has its trouble instead.
pub(super) fn service(service: &ServiceView) -> Result<[String; 6], [String; 2]> {
    if let Some(trouble) = &service.trouble {
        let trouble = format!("{trouble}; trying again");
        return Err([service.name.clone(), trouble]);
    }
    Ok([
        service.name.clone(),
        number(service.tokens_per_second, 0),
        service.kind.clone().unwrap_or_else(|| "?".into()),
        whole(service.sessions),
        whole(service.links),
        percent(service.kv_usage),
    ])
}

/// Columns of the sessions before their rounds, the most telling first, with the room that each takes.
pub(super) const SESSION_COLUMNS: [(&str, usize); 14] = [
    ("session", 8),
    ("target", 10),
    ("policy", 14),
    ("rounds", 6),
    ("tokens", 6),
    ("ahead", 7),
    ("ms", 7),
    ("hits", 7),
    ("rank", 5),
    ("bytes", 5),
    ("extra", 8),
    ("hidden", 7),
    ("sent/used/late", 14),
    ("bound by", 18),
];

/// A session in these columns.
pub(super) fn session(session: &SessionView) -> [String; SESSION_COLUMNS.len()] {
    let figures = &session.figures;
    let entries = figures.entry_tokens;
    let [sent, used, late] = [entries.pushed, entries.used, entries.late].map(short);
    let limits = [&figures.lookahead_limits, &figures.build_limits];
    let limits = limits.map(|shares| largest(shares).map_or("-", |(name, _)| name.as_str()));
    [
        session.session.to_string(),
        session.target.clone(),
        session.policy.clone(),
        session.rounds.to_string(),
        session.tokens.to_string(),
        percent(session.ahead_share),
        number(session.round_ms, 2),
        percent(figures.hit_rate),
        number(figures.decided_rank, 1),
        number(figures.bytes_per_round, 0),
        extra(figures.hit_round_extra),
        percent(figures.hidden_share),
        format!("{sent}/{used}/{late}"),
        limits.join("/"),
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
    text.push_str(&table(snapshot));
    text.push('\n');
    let [name, rest @ ..] = SERVICE_COLUMNS;
    let _ = writeln!(text, "{name:23} {}", columns(&rest));
    for view in &snapshot.services {
        let _ = match service(view) {
            Ok([name, rest @ ..]) => writeln!(text, "{name:23} {}", columns(&rest)),
            Err([name, trouble]) => writeln!(text, "{name:23} {trouble}"),
        };
    }
    if !snapshot.sessions.is_empty() {
        let names = SESSION_COLUMNS.map(|(name, _)| name.to_owned());
        let _ = writeln!(text, "\n{}accepted by round", padded(&names));
    }
    for view in snapshot.sessions.iter().take(LISTED) {
        let bars: String = view.recent.iter().map(bar).collect();
        let _ = writeln!(text, "{}{bars}", padded(&session(view)));
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

/// The figures in columns as wide as what is in them, so that there is always room between them.
fn table(snapshot: &Snapshot) -> String {
    let heading = ["", "now", "since start"].map(str::to_owned);
    let rows: Vec<[String; 3]> = std::iter::once(heading).chain(figures(snapshot)).collect();
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let (name_width, now_width, all_width) = (width(0), width(1).max(22), width(2).max(22));
    let mut table = String::new();
    for [name, now, all] in &rows {
        let _ = writeln!(
            table,
            "{name:name_width$}  {now:>now_width$}  {all:>all_width$}"
        );
    }
    table
}

fn columns<T: AsRef<str>>(cells: &[T]) -> String {
    let cell = |cell: &T| format!("{:<12} ", cell.as_ref());
    cells.iter().map(cell).collect()
}

/// The cells of a session, each with the room that its column has.
fn padded(cells: &[String; SESSION_COLUMNS.len()]) -> String {
    let columns = cells.iter().zip(SESSION_COLUMNS);
    let columns: Vec<_> = columns
        .map(|(cell, (_, width))| format!("{cell:<width$} "))
        .collect();
    columns.concat()
}

fn none() -> String {
    "-".into()
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(none, |value| format!("{value:.digits$}"))
}

fn whole(value: Option<u64>) -> String {
    value.map_or_else(none, |value| value.to_string())
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(none, |value| format!("{:.1} %", value * 100.0))
}

fn extra(value: Option<f64>) -> String {
    value.map_or_else(none, |extra| format!("+{:.1} %", extra * 100.0))
}

/// A count in five letters at most, as long as that is possible.
fn short(count: Option<f64>) -> String {
    match count {
        None => none(),
        Some(count @ 1e6..) => format!("{:.1}M", count / 1e6),
        Some(count @ 1e4..) => format!("{:.0}k", count / 1e3),
        Some(count) => format!("{count:.0}"),
    }
}

/// The largest one.
fn largest(shares: &BTreeMap<String, f64>) -> Option<(&String, &f64)> {
    shares.iter().max_by(|a, b| a.1.total_cmp(b.1))
}

/// Where windows after verdicts of `SSD` came from: each share, in the order of the row's name.
fn sources(shares: &BTreeMap<String, f64>) -> String {
    if shares.is_empty() {
        return none();
    }
    let of = |name| 100.0 * shares.get(name).copied().unwrap_or(0.0);
    let told = ["ahead", "remote", "local", "none"].map(|name| format!("{:.0}", of(name)));
    format!("{} %", told.join(", "))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::{
        board::{Requests, tests::example},
        figures::EntryTokens,
    };

    #[test]
    fn every_figure_is_told_by_its_name() {
        let mut snapshot = example();
        let one = |name: &str, share| BTreeMap::from([(name.to_owned(), share)]);
        snapshot.now = Figures {
            hit_place: Some(2.25),
            decided_rank: Some(1.5),
            unranked_share: Some(0.03),
            outcomes_per_build: Some(12.0),
            used_share: Some(0.1),
            entry_tokens: EntryTokens {
                pushed: Some(12_345.0),
                received: Some(400.0),
                used: Some(1234.0),
                late: Some(7.0),
            },
            sources: [("ahead", 0.9), ("local", 0.02), ("none", 0.08)]
                .map(|(name, share)| (name.to_owned(), share))
                .into(),
            lookahead_limits: one("margin", 0.75),
            build_limits: one("worth", 0.5),
            ..Figures::default()
        };
        let rows = figures(&snapshot);
        for (name, expected) in [
            ("outcomes, place of hits", "12.0, 2.2"),
            ("rank of decided tokens", "1.50"),
            ("decided and not ranked", "3.0 %"),
            ("ahead: sent, used, late", "12k, 1234, 7"),
            ("drafted ahead and used", "10.0 %"),
            ("ahead/remote/local/none", "90, 0, 2, 8 %"),
            ("lookahead bound by", "margin 75 %"),
            ("outcomes bound by", "worth 50 %"),
            ("hit rate", "-"),
        ] {
            let row = rows.iter().find(|row| row[0] == name);
            assert_eq!(row.unwrap()[1], expected, "{name}");
        }
    }

    #[test]
    fn a_session_has_a_cell_for_each_of_its_figures() {
        let snapshot = example();
        let cells = session(&snapshot.sessions[0]);
        let cell = |name: &str| {
            let mut columns = SESSION_COLUMNS.iter();
            let at = columns.position(|(column, _)| *column == name);
            cells[at.unwrap()].as_str()
        };
        for (name, expected) in [
            ("session", "7"),
            ("policy", "SSD"),
            ("rank", "3.0"),
            ("hidden", "90.0 %"),
            ("sent/used/late", "40/0/0"),
            ("bound by", "-/time"),
            ("hits", "-"),
        ] {
            assert_eq!(cell(name), expected, "{name}");
        }
        let text = text(&snapshot);
        assert!(
            text.contains("bound by") && text.contains("-/time"),
            "{text}"
        );
    }

    #[test]
    fn columns_stand_apart_however_long_what_is_in_them() {
        let mut snapshot = example();
        let limits = [("acceptance", 0.31), ("margin", 0.18), ("probe", 0.1)];
        let limits = limits.map(|(name, share)| (name.to_owned(), share));
        snapshot.now.lookahead_limits = BTreeMap::from(limits.clone());
        snapshot.all.lookahead_limits = BTreeMap::from(limits);
        snapshot.services[0].name = "n".repeat(30);
        let text = text(&snapshot);
        let shares = "acceptance 31 %, margin 18 %";
        let row = text
            .lines()
            .find(|line| line.contains("lookahead bound by"));
        let cells: Vec<&str> = row
            .unwrap()
            .split("  ")
            .filter(|cell| !cell.is_empty())
            .collect();
        assert_eq!(cells, ["lookahead bound by", shares, shares]);
        assert!(text.contains("nnn "), "{text}");
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let mut snapshot = example();
        snapshot.requests = Requests::default();
        snapshot.now = Figures::default();
        assert_eq!(requests(&snapshot), "- running, - waiting, - parked");
        for [name, now, _] in figures(&snapshot) {
            let expected = if name == "outcomes, place of hits" {
                "-, -"
            } else {
                "-"
            };
            assert_eq!(now, expected, "{name}");
        }
    }

    #[test]
    fn counts_stay_short() {
        for (count, told) in [
            (0.0, "0"),
            (9999.0, "9999"),
            (54_321.0, "54k"),
            (2.5e6, "2.5M"),
        ] {
            assert_eq!(short(Some(count)), told);
        }
    }
}
