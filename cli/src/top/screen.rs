//! A snapshot, drawn.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Block, Borders, Cell, Paragraph, Row, Table, Wrap},
};

use super::{
    board::{ServiceView, Snapshot},
    plain::{self, SESSION_COLUMNS},
    session::{RECENT, SessionView},
};

/// Lines of the services: their heading and a frame around them.
const AROUND: u16 = 2;
/// Room between two columns, and between the figures and the services.
const GAP: usize = 1;
const BETWEEN: usize = 2;
/// The names of figures.
const NAME: usize = 24;
/// Values of figures: every number and one share at least, two shares at most.
const VALUE: [usize; 2] = [16, 29];
/// A service: its name at least, and the other columns.
const SERVICE: usize = 11;
const OF_SERVICE: [usize; 5] = [8, 6, 8, 5, 7];

/// Draws everything into `frame`, whatever its size.
pub(super) fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot) {
    let figures = plain::figures(snapshot);
    let [head, middle, sessions, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(figures.len() as u16 + AROUND),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let [left, right] = Layout::horizontal([
        Constraint::Length(figures_width(middle.width.into()) as u16),
        Constraint::Min(0),
    ])
    .spacing(BETWEEN as u16)
    .areas(middle);
    let title = Line::from(vec![
        Span::from("foretoken top").bold(),
        Span::from(format!("  {}", plain::requests(snapshot))),
    ]);
    frame.render_widget(Paragraph::new(title), head);
    draw_figures(frame, left, &figures);
    draw_services(frame, right, &snapshot.services);
    draw_sessions(frame, sessions, &snapshot.sessions);
    let legend = Line::from(vec![
        Span::from("q").bold(),
        Span::from(" ends   window drafted "),
        Span::styled("ahead", style("ahead")),
        Span::from(", asked for ("),
        Span::styled("remote", style("remote")),
        Span::from("), "),
        Span::styled("local", style("local")),
    ]);
    frame.render_widget(Paragraph::new(legend), foot);
}

/// Of so much, what the figures get: enough for their numbers first, then the services have all of
/// their columns, then come second shares.
fn figures_width(width: usize) -> usize {
    let [least, most] = VALUE.map(|value| NAME + 2 * (GAP + value));
    let services = 19 + OF_SERVICE.map(|width| GAP + width).iter().sum::<usize>();
    let left = width.saturating_sub(BETWEEN + services);
    left.clamp(least, most).min(width)
}

fn framed(title: &str) -> Block<'_> {
    Block::new().borders(Borders::TOP).title(title)
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, figures: &[[String; 3]]) {
    let width = usize::from(area.width).saturating_sub(2 * GAP);
    // On a very narrow screen a name is better cut than a number.
    let name_width = NAME.min(width / 2);
    let value_width = (width - name_width) / 2;
    let cell = |text: &str| Cell::from(Line::from(beginning(text, value_width)).right_aligned());
    let rows = figures.iter().map(|[name, now, all]| {
        let name = Cell::from(beginning(name, name_width));
        Row::new([name, cell(now).bold(), cell(all)])
    });
    let widths =
        [name_width, value_width, value_width].map(|width| Constraint::Length(width as u16));
    let header = Row::new([Cell::from(""), cell("now"), cell("since start")]).dim();
    let table = Table::new(rows, widths)
        .header(header)
        .column_spacing(GAP as u16);
    frame.render_widget(table.block(framed("speculation")), area);
}

fn draw_services(frame: &mut Frame<'_>, area: Rect, services: &[ServiceView]) {
    let height = Constraint::Length(services.len() as u16 + AROUND);
    let [table, troubles] = Layout::vertical([height, Constraint::Min(0)]).areas(area);
    let width = usize::from(area.width);
    let columns = fitting(width.saturating_sub(SERVICE), &OF_SERVICE);
    let others = OF_SERVICE.iter().take(columns);
    let name_width = width
        - others
            .clone()
            .map(|width| GAP + width)
            .sum::<usize>()
            .min(width);
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for view in services {
        match plain::service(view) {
            Ok([name, rest @ ..]) => {
                let rest = rest.iter().zip(others.clone());
                let rest = rest.map(|(cell, width)| beginning(cell, *width));
                rows.push(Row::new([end(&name, name_width)].into_iter().chain(rest)));
            }
            Err([name, trouble]) => {
                rows.push(Row::new([end(&name, name_width), "down".into()]).red());
                lines.push(Line::from(format!("{name}: {trouble}")).red());
            }
        }
    }
    let widths = [name_width].into_iter().chain(others.copied());
    let widths = widths.map(|width| Constraint::Length(width as u16));
    let header = Row::new(plain::SERVICE_COLUMNS.into_iter().take(columns + 1)).dim();
    let shown = Table::new(rows, widths)
        .header(header)
        .column_spacing(GAP as u16);
    frame.render_widget(shown.block(framed("services")), table);
    let lines = Paragraph::new(lines).wrap(Wrap { trim: true });
    frame.render_widget(lines, troubles);
}

fn draw_sessions(frame: &mut Frame<'_>, area: Rect, sessions: &[SessionView]) {
    let room = usize::from(area.height.saturating_sub(AROUND));
    let left = usize::from(area.width).saturating_sub(RECENT);
    let room_of = SESSION_COLUMNS.map(|(_, width)| width);
    // Its number at least.
    let columns = fitting(left, &room_of).max(1);
    let rows = sessions.iter().take(room).map(|session| {
        let bars = session.recent.iter().map(|bar| {
            let letter = plain::bar(bar).to_string();
            Span::styled(letter, style(&bar.source))
        });
        let cells = plain::session(session).into_iter().zip(SESSION_COLUMNS);
        let cells = cells.take(columns).map(|(text, (column, width))| {
            Cell::from(match column {
                "target" => end(&text, width),
                _ => beginning(&text, width),
            })
        });
        let row = Row::new(cells.chain([Cell::from(bars.collect::<Line<'_>>())]));
        if session.ended.is_some() {
            row.dim()
        } else {
            row
        }
    });
    let shown = SESSION_COLUMNS.into_iter().take(columns);
    let widths = shown.clone().map(|(_, width)| width as u16);
    let widths = widths.map(Constraint::Length);
    let widths = widths.chain([Constraint::Min(RECENT as u16)]);
    let names = shown.map(|(name, _)| name);
    let header = Row::new(names.chain(["accepted by round"])).dim();
    let hidden = sessions.len().saturating_sub(room);
    let title = if hidden > 0 {
        format!("sessions ({hidden} more)")
    } else {
        "sessions".into()
    };
    let table = Table::new(rows, widths).header(header);
    frame.render_widget(table.block(framed(&title)), area);
}

/// How many of these columns there is room for, each with what keeps it apart.
fn fitting(mut left: usize, columns: &[usize]) -> usize {
    let fits = |width: &&usize| {
        let found = left.checked_sub(**width + GAP);
        left = found.unwrap_or(0);
        found.is_some()
    };
    columns.iter().take_while(fits).count()
}

/// A text in so many letters; if it has more, it is seen to go on.
fn beginning(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept = text.chars().take(width.saturating_sub(1));
    kept.chain(['…']).collect()
}

/// The same of names, whose ends tell them apart: `target-0`, or a port.
fn end(text: &str, width: usize) -> String {
    let more = text.chars().count().saturating_sub(width);
    if more == 0 {
        return text.to_owned();
    }
    ['…']
        .into_iter()
        .chain(text.chars().skip(more + 1))
        .collect()
}

/// How rounds are coloured, by where their windows came from.
fn style(source: &str) -> Style {
    match source {
        "ahead" => Color::Green.into(),
        "remote" => Color::Yellow.into(),
        "local" => Color::Magenta.into(),
        _ => Color::DarkGray.into(),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::top::board::tests::example;

    fn drawn(width: u16, height: u16) -> String {
        drawn_of(&example(), width, height)
    }

    fn drawn_of(snapshot: &Snapshot, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, snapshot)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn sessions_services_and_figures_have_their_place() {
        let screen = drawn(130, 30);
        for word in [
            "2 running",
            "90.0 %",
            "target-0",
            "draft-0",
            "no answer in time",
            "SSD",
            "█▄·",
        ] {
            assert!(screen.contains(word), "{word} in\n{screen}");
        }
    }

    #[test]
    fn a_session_has_as_many_columns_as_there_is_room_for_beside_its_rounds() {
        let all = |screen: &str| {
            let names = SESSION_COLUMNS.iter().map(|(name, _)| *name);
            names.filter(|name| screen.contains(name)).count()
        };
        let (narrow, wide) = (drawn(110, 30), drawn(200, 30));
        assert!(wide.contains("█▄·") && narrow.contains("█▄·"), "{narrow}");
        assert_eq!(all(&wide), SESSION_COLUMNS.len(), "{wide}");
        assert!(wide.contains("40/0/0") && wide.contains("-/time"), "{wide}");
        assert!(!narrow.contains("sent/used/late"), "{narrow}");
        assert_eq!(
            [0, 9, 10, 15].map(|left| fitting(left, &[9, 4])),
            [0, 0, 1, 2]
        );
    }

    /// What the screen has in the line that begins with this.
    fn line<'a>(screen: &'a str, name: &str) -> &'a str {
        let mut lines = screen.lines().map(|line| line.trim_matches('"'));
        let found = lines.find(|line| line.starts_with(name));
        found.unwrap_or_else(|| panic!("{name} in\n{screen}"))
    }

    #[test]
    fn every_number_is_whole_on_common_terminals_and_long_shares_are_cut_on_the_right() {
        let mut snapshot = example();
        let limits = [("acceptance", 0.31), ("margin", 0.18)];
        let limits = limits.map(|(name, share)| (name.to_owned(), share));
        for figures in [&mut snapshot.now, &mut snapshot.all] {
            figures.tokens_per_second = Some(12_345.0);
            figures.lookahead_limits = limits.clone().into();
            figures.entry_tokens.received = Some(400.0);
            figures.entry_tokens.pushed = Some(123_456.0);
        }
        snapshot.services[0].name = "127.0.0.1:45123".into();
        for (width, height, share) in [
            (80, 24, "acceptance 31 %…"),
            (100, 30, "acceptance 31 %…"),
            (120, 40, "acceptance 31 %,…"),
            (150, 40, "acceptance 31 %, margin 18 %"),
        ] {
            let screen = drawn_of(&snapshot, width, height);
            let bound = line(&screen, "lookahead bound by");
            assert_eq!(bound.matches(share).count(), 2, "{screen}");
            let rates = line(&screen, "tokens/s");
            assert_eq!(rates.matches("12345").count(), 2, "{screen}");
            let entries = line(&screen, "ahead: sent, used, late ");
            assert_eq!(entries.matches("123k, 0, 0").count(), 2, "{screen}");
            for word in ["since start", "90.0 %", "45123", "target-0", "250", "█▄·"] {
                assert!(screen.contains(word), "{word} in\n{screen}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_seen_to_go_on() {
        assert_eq!(beginning("12345", 5), "12345");
        assert_eq!(beginning("123456", 5), "1234…");
        assert_eq!(end("target-0", 8), "target-0");
        assert_eq!(end("127.0.0.1:9100", 6), "…:9100");
        assert_eq!((beginning("ab", 1), end("ab", 1)), ("…".into(), "…".into()));
    }

    #[test]
    fn any_size_of_terminal_can_be_drawn_on() {
        for width in [1, 2, 20, 59, 61, 80, 300] {
            for height in [1, 2, 10, 24, 100] {
                drawn(width, height);
            }
        }
    }
}
