//! The whole terminal as a view, until `q`, Ctrl-C or a signal.

use std::{
    io,
    sync::mpsc::{Receiver, TryRecvError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::DefaultTerminal;

use super::{board::Board, screen, watch::News};

/// Time between two pictures: rounds are too many to be seen one by one, but not their flow.
const PICTURE: Duration = Duration::from_millis(100);
/// Shortest wait for a key: with none at all, none is looked for.
const GLANCE: Duration = Duration::from_millis(1);

/// Shows `board` as `inbox` changes it. The terminal is as it was afterwards, whatever happens.
pub(super) fn show(board: Board, inbox: &Receiver<News>) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("cannot use the terminal as a screen")?;
    let shown = follow(&mut terminal, board, inbox);
    let restored = ratatui::try_restore();
    shown.and(restored).context("cannot show on the terminal")
}

fn follow(
    terminal: &mut DefaultTerminal,
    mut board: Board,
    inbox: &Receiver<News>,
) -> io::Result<()> {
    let mut due = Instant::now();
    loop {
        loop {
            match inbox.try_recv() {
                Ok(News::Stop) => return Ok(()),
                Ok(news) => board.note(news),
                // Without news the last picture stays.
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        if Instant::now() >= due {
            due = Instant::now() + PICTURE;
            let snapshot = board.snapshot();
            terminal.draw(|frame| screen::draw(frame, &snapshot))?;
        }
        let wait = due.saturating_duration_since(Instant::now());
        if event::poll(wait.max(GLANCE))? {
            match event::read()? {
                Event::Key(key) if ends(key) => return Ok(()),
                // The next picture has the new size.
                Event::Resize(..) => due = Instant::now(),
                _ => {}
            }
        }
    }
}

fn ends(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && match key.code {
            KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
            KeyCode::Char('c' | 'd') => control,
            _ => false,
        }
}
