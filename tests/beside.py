"""Runs commands at once: `beside.py [--behind] FIRST SECOND...`.

With `--behind` the first one has what the others leave of the processors, whatever groups of processes these have.
The last one speaks as it goes; what the others have to say comes when each is done, and after all else if it failed.
Fails if any of them does.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


def tell(said: bytes) -> None:
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()


def stand_back() -> None:
    """Leaves the processors to others, from within a session of one's own. `nice` alone does not: Linux divides the
    time among sessions first, and then among their processes."""
    os.nice(19)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


class Quiet(threading.Thread):
    """A command with a session of its own, so that all it has started can be ended."""

    def __init__(self, command: str, stands_back: bool) -> None:
        super().__init__()
        self.process = subprocess.Popen(
            ["sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=stand_back if stands_back else None,
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


def main(*commands: str) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    behind = commands[0] == "--behind"
    *beside, last = commands[behind:]
    quiet: list[Quiet] = []
    loud = None
    try:
        for place, command in enumerate(beside):
            quiet.append(Quiet(command, behind and place == 0))
        loud = subprocess.Popen(["sh", "-c", f"exec {last}"])
        codes = [loud.wait()]
        for one in quiet:
            one.join()
    except KeyboardInterrupt:
        # It clears away what it has started, and passes the signal on.
        if loud:
            loud.terminate()
            loud.wait()
        for one in quiet:
            one.end()
        return 130
    for one in quiet:
        tell(one.unsaid)
    codes += [one.process.returncode for one in quiet]
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
