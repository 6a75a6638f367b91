//! What the person who started `up` sees.

use std::{
    io::{self, Write as _},
    sync::Mutex,
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Standard error: logs with the name of who wrote them, and bars while models load.
pub(super) struct Console {
    bars: MultiProgress,
    /// Bar of each process while it loads.
    loading: Mutex<Vec<Option<ProgressBar>>>,
    names: Vec<String>,
    width: usize,
}

impl Console {
    /// A console for processes of these names.
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let names: Vec<String> = names.map(ToOwned::to_owned).collect();
        Self {
            // Draws nothing if standard error is not a terminal.
            bars: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()),
            loading: Mutex::new(vec![None; names.len()]),
            width: names.iter().map(String::len).max().unwrap_or(0),
            names,
        }
    }

    /// A line of one process.
    pub(super) fn log(&self, index: usize, line: &str) {
        let name = self.names.get(index).map_or("up", String::as_str);
        self.line(&format!("{name:width$} | {line}", width = self.width));
    }

    /// A line of `up` itself.
    pub(super) fn say(&self, line: &str) {
        self.line(&format!("{:width$} | {line}", "up", width = self.width));
    }

    /// How far a process has loaded its model.
    pub(super) fn loading(&self, index: usize, done: u64, total: u64) {
        let mut loading = self
            .loading
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(slot) = loading.get_mut(index) else {
            return;
        };
        let bar = slot.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg} | {bar:30} {bytes}/{total_bytes}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let name = format!("{:width$}", self.names[index], width = self.width);
            self.bars
                .add(ProgressBar::new(total).with_style(style).with_message(name))
        });
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
            *slot = None;
        }
    }

    /// What belongs on standard output: the answer to "is it up, and how do I use it".
    pub(super) fn announce(&self, text: &str) {
        self.bars.suspend(|| {
            let mut out = io::stdout().lock();
            // Nobody may be reading; that is no reason to stop serving.
            let _ = writeln!(out, "{text}").and_then(|()| out.flush());
        });
    }

    fn line(&self, line: &str) {
        self.bars.suspend(|| {
            let _ = writeln!(io::stderr().lock(), "{line}");
        });
    }
}
