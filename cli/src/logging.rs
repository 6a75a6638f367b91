//! Logs, on standard error. `RUST_LOG` says what is logged.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

/// Starts logging at `level`, unless `RUST_LOG` says otherwise. A second call changes nothing.
pub(crate) fn init(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    // An error means that a logger is in place, which is what is wanted.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        // They would go to standard error too, and end the thread that logs where that cannot be written.
        .log_internal_errors(false)
        .try_init();
}
