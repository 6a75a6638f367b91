"""Runs two commands at once: `beside.py FIRST SECOND`.

The first one has what the second leaves of the processors, whatever groups of processes either has. It
says what it has to say when it is done, and after all else if it failed. Fails if either does.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading


def tell(said: bytes) -> None:
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()


def stand_back() -> None:
    """Leaves the processors to others. `nice` alone does not where these are in groups that have less than others:
    pods that ask for nothing."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class Quiet(threading.Thread):
    """A command with a session of its own, so that all it has started can be ended."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self.process = subprocess.Popen(
            ["nice", "-n", "19", "sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=stand_back,
        )
        self.unsaid = b""
        self.start()

    def run(self) -> None:
        said, _ = self.process.communicate()
        if self.process.returncode == 0:
            tell(said)
        else:
            self.unsaid = said

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.join()


def main(first: str, second: str) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    quiet = Quiet(first)
    loud = subprocess.Popen(["sh", "-c", f"exec {second}"])
    try:
        code = loud.wait()
        quiet.join()
    except KeyboardInterrupt:
        # It clears away what it has started, and passes the signal on.
        loud.terminate()
        loud.wait()
        quiet.end()
        return 130
    tell(quiet.unsaid)
    return code or quiet.process.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
