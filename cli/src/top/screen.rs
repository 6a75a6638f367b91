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
    let [left, right] = Layout::horizontal([Constraint::Min(70), Constraint::Percentage(44)])
        .spacing(2)
        .areas(middle);
    let title = Line::from(vec![
        Span::from("foretoken top").bold(),
        Span::from(format!("  {}", plain::requests(snapshot))),
    ]);
    frame.render_widget(Paragraph::new(title), head);
    draw_figures(frame, left, figures);
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

fn framed(title: &str) -> Block<'_> {
    Block::new().borders(Borders::TOP).title(title)
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, figures: Vec<[String; 3]>) {
    let rows = figures.into_iter().map(|[name, now, all]| {
        let cell = |text: String| Cell::from(Line::from(text).right_aligned());
        Row::new([Cell::from(name), cell(now).bold(), cell(all)])
    });
    let heading = |text: &'static str| Cell::from(Line::from(text).right_aligned());
    let widths = [
        Constraint::Min(24),
        Constraint::Length(20),
        Constraint::Length(22),
    ];
    let header = Row::new([Cell::from(""), heading("now"), heading("since start")]).dim();
    let table = Table::new(rows, widths).header(header);
    frame.render_widget(table.block(framed("speculation")), area);
}

fn draw_services(frame: &mut Frame<'_>, area: Rect, services: &[ServiceView]) {
    let height = Constraint::Length(services.len() as u16 + AROUND);
    let [table, troubles] = Layout::vertical([height, Constraint::Min(0)]).areas(area);
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for view in services {
        match plain::service(view) {
            Ok(cells) => rows.push(Row::new(cells)),
            Err([name, trouble]) => {
                rows.push(Row::new([name.clone(), "down".into()]).red());
                lines.push(Line::from(format!("{name}: {trouble}")).red());
            }
        }
    }
    let widths = [
        Constraint::Min(19),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(5),
        Constraint::Length(7),
    ];
    let shown = Table::new(rows, widths).header(Row::new(plain::SERVICE_COLUMNS).dim());
    frame.render_widget(shown.block(framed("services")), table);
    let lines = Paragraph::new(lines).wrap(Wrap { trim: true });
    frame.render_widget(lines, troubles);
}

fn draw_sessions(frame: &mut Frame<'_>, area: Rect, sessions: &[SessionView]) {
    let room = usize::from(area.height.saturating_sub(AROUND));
    let columns = fitting(area.width.into());
    let rows = sessions.iter().take(room).map(|session| {
        let bars = session.recent.iter().map(|bar| {
            let letter = plain::bar(bar).to_string();
            Span::styled(letter, style(&bar.source))
        });
        let cells = plain::session(session).into_iter().take(columns);
        let cells = cells.map(Cell::from);
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

/// How many columns of a session there is room for beside its rounds: its number at least.
fn fitting(width: usize) -> usize {
    let mut left = width.saturating_sub(RECENT);
    let mut fits = |(_, width): &(&str, usize)| {
        let found = left.checked_sub(width + 1);
        left = found.unwrap_or(0);
        found.is_some()
    };
    let fitting = SESSION_COLUMNS.iter().take_while(|column| fits(column));
    fitting.count().max(1)
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
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let snapshot = example();
        terminal.draw(|frame| draw(frame, &snapshot)).unwrap();
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
        assert_eq!([0, 96, 97].map(fitting), [1, 6, 7]);
    }

    #[test]
    fn any_size_of_terminal_can_be_drawn_on() {
        for width in [1, 2, 20, 80, 300] {
            for height in [1, 2, 10, 24, 100] {
                drawn(width, height);
            }
        }
    }
}
