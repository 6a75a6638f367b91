//! What commands say: answers on standard output, remarks on standard error.

use std::{
    fmt::Display,
    io::{self, Write},
};

/// Why an answer did not get out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// Whoever read it has had enough, which is no failure.
    #[error("nobody reads the output any more")]
    Closed,
    /// It is lost.
    #[error("cannot write the output")]
    Lost(#[source] io::Error),
}

/// Writes `text` to standard output, all of it.
pub(crate) fn print(text: &str) -> Result<(), OutputError> {
    write(&mut io::stdout().lock(), text)
}

/// Writes a line to standard error. Nobody may be there to read it, which is no reason to fail.
pub(crate) fn remark(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

fn write(out: &mut impl Write, text: &str) -> Result<(), OutputError> {
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => OutputError::Closed,
        _ => OutputError::Lost(error),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs::File, thread, time::Duration};

    use super::*;

    #[test]
    fn a_reader_that_has_had_enough_is_told_from_output_that_is_lost() {
        let (reader, mut writer) = io::pipe().unwrap();
        write(&mut writer, "a").unwrap();
        drop(reader);
        // Other tests of this process fork, and a child has the reader until it runs its program.
        let refused = |_| {
            let written = write(&mut writer, "a");
            thread::sleep(Duration::from_millis(20));
            written.err()
        };
        let closed = (0..500).find_map(refused).unwrap();
        assert!(matches!(closed, OutputError::Closed), "{closed}");
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let lost = write(&mut full, "a").unwrap_err();
        assert!(matches!(lost, OutputError::Lost(_)), "{lost}");
    }
}
