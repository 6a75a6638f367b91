//! Telling people how far a download is.

use std::sync::Mutex;

/// Hears how a download goes on. Called from the downloading task, so it must be quick.
pub trait Progress: Send + Sync {
    /// A download begins: what it is called, its bytes in all, and those that are there already.
    fn begin(&self, name: &str, total_bytes: u64, present_bytes: u64);
    /// More bytes arrived.
    fn advance(&self, bytes: u64);
    /// Bytes that had arrived, or were there already, are of no use: they will be asked for again.
    fn lose(&self, bytes: u64);
    /// Nothing follows; the download may have failed.
    fn finish(&self);
}

/// Says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _name: &str, _total_bytes: u64, _present_bytes: u64) {}
    fn advance(&self, _bytes: u64) {}
    fn lose(&self, _bytes: u64) {}
    fn finish(&self) {}
}

/// A bar on the terminal; nothing if standard error is not one.
#[derive(Debug, Default)]
pub struct Bar {
    bar: Mutex<Option<indicatif::ProgressBar>>,
}

impl Bar {
    fn with(&self, act: impl FnOnce(&mut Option<indicatif::ProgressBar>)) {
        // A panic elsewhere cannot leave an Option half changed.
        act(&mut self
            .bar
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner));
    }
}

impl Progress for Bar {
    fn begin(&self, name: &str, total_bytes: u64, present_bytes: u64) {
        let style = indicatif::ProgressStyle::with_template(
            "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        )
        .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar());
        let bar = indicatif::ProgressBar::new(total_bytes)
            .with_style(style)
            .with_message(name.to_owned())
            .with_position(present_bytes);
        bar.reset_eta();
        self.with(|slot| *slot = Some(bar));
    }

    fn advance(&self, bytes: u64) {
        self.with(|slot| {
            if let Some(bar) = slot {
                bar.inc(bytes);
            }
        });
    }

    fn lose(&self, bytes: u64) {
        self.with(|slot| {
            if let Some(bar) = slot {
                bar.dec(bytes);
            }
        });
    }

    fn finish(&self) {
        self.with(|slot| {
            if let Some(bar) = slot.take() {
                bar.finish_and_clear();
            }
        });
    }
}
