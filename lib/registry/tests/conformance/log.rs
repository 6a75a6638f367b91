//! What is logged, for tests of what people are told.

use std::{
    io,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use tracing::{
    Dispatch, Level,
    subscriber::{DefaultGuard, NoSubscriber},
};

/// Lives as long as the tests do. Beside a single subscriber, what the thread of another test comes by
/// first is asked of that thread's, which is none, and never told to anybody.
static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

/// Lines logged on this thread while it lives.
pub(crate) struct Log {
    lines: Lines,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Starts listening to warnings and worse.
    pub(crate) fn listen() -> Self {
        Self::listen_to(Level::WARN)
    }

    /// Starts listening to what is of that level or worse.
    pub(crate) fn listen_to(level: Level) -> Self {
        LazyLock::force(&OTHER);
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        Self {
            lines,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// What was said since the last time somebody asked.
    pub(crate) fn take(&self) -> String {
        let mut lines = self.lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&std::mem::take(&mut *lines)).into_owned()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
