//! A snapshot, drawn.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Block, Borders, Cell, Paragraph, Row, Table, Wrap},
};

use super::{
    board::{RECENT, ServiceView, SessionView, Snapshot},
    plain,
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
    let rows = sessions.iter().take(room).map(|session| {
        let bars = session.recent.iter().map(|bar| {
            let letter = plain::bar(bar).to_string();
            Span::styled(letter, style(&bar.source))
        });
        let cells = plain::session(session).map(Cell::from).into_iter();
        let row = Row::new(cells.chain([Cell::from(bars.collect::<Line<'_>>())]));
        if session.ended.is_some() {
            row.dim()
        } else {
            row
        }
    });
    let widths = [
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(14),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Min(RECENT as u16),
    ];
    let names = plain::SESSION_COLUMNS.into_iter();
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
    fn any_size_of_terminal_can_be_drawn_on() {
        for width in [1, 2, 20, 80, 300] {
            for height in [1, 2, 10, 24, 100] {
                drawn(width, height);
            }
        }
    }
}
