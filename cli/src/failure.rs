//! How a command fails: what is printed, and the exit code.

use std::process::ExitCode;

use crate::output::{OutputError, remark};

/// Exit code of bad usage and bad configuration (`EX_USAGE` of sysexits).
pub(crate) const USAGE: u8 = 64;
/// Exit code of everything else that went wrong.
const FAILED: u8 = 1;

/// Something the user has to write differently. Ends with [`USAGE`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// A failure that has been printed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("already reported")]
pub(crate) enum Reported {
    /// Something the user has to write differently. Ends with [`USAGE`].
    Usage,
    /// Anything else.
    Failure,
}

/// An error that says what to write differently.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    UsageError(message.into()).into()
}

/// Prints what went wrong, with its causes, and chooses the exit code.
pub(crate) fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    if let Some(OutputError::Closed) = error.downcast_ref() {
        return ExitCode::SUCCESS;
    }
    let reported = error.downcast_ref::<Reported>();
    if reported.is_none() {
        remark(format_args!("error: {}", explained(&error)));
    }
    let is_usage = error.is::<UsageError>() || reported == Some(&Reported::Usage);
    ExitCode::from(if is_usage { USAGE } else { FAILED })
}

/// An error and its causes, each once: some messages have that of their cause in them.
fn explained(error: &anyhow::Error) -> String {
    let causes = error.chain().map(ToString::to_string);
    causes
        .reduce(|said, cause| {
            if said.contains(&cause) {
                said
            } else {
                format!("{said}: {cause}")
            }
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_nobody_wants_any_more_is_not_missed() {
        let closed = anyhow::Error::from(OutputError::Closed);
        let result = Err(closed.context("cannot say it"));
        assert_eq!(exit_code(result), ExitCode::SUCCESS);
    }

    #[test]
    fn a_cause_that_a_message_has_in_it_is_not_said_again() {
        let error =
            anyhow::anyhow!("the port is in use").context("cannot listen: the port is in use");
        assert_eq!(explained(&error), "cannot listen: the port is in use");
        let error = anyhow::anyhow!("no such file").context("cannot read a");
        assert_eq!(
            explained(&error.context("no model")),
            "no model: cannot read a: no such file"
        );
    }
}
