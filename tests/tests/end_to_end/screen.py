"""A program on a pseudo-terminal, as its user sees it."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

PATIENCE = 120


class Screen:
    """Runs `command` on a terminal of its own, which controls it; `seen` is what it wrote."""

    def __init__(self, command, rows=40, columns=132):
        self.main, self.terminal = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.terminal)
        self.seen = b""
        self.process = subprocess.Popen(
            command,
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=self.terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, rows, columns):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys):
        os.write(self.main, keys)

    def read(self, patience=0.2):
        """Reads what comes within so many seconds; says whether anything did."""
        there = bool(select.select([self.main], [], [], patience)[0])
        if there:
            self.seen += os.read(self.main, 65536)
        return there

    def wait(self, what, is_there, meanwhile=lambda: None):
        """Reads on until `is_there` is true of what was seen; does `meanwhile` whenever nothing comes."""
        deadline = time.monotonic() + PATIENCE
        while not is_there(self.seen):
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.fail(f"waited in vain for {what}")
            if not self.read():
                meanwhile()

    def end(self, how):
        """Reads until it has ended, which it has to do well, and leave the terminal as it was."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.05)
        while self.read(0.05):
            pass
        if self.process.poll() != 0:
            self.fail(f"after {how} it ended with {self.process.returncode}")
        after = termios.tcgetattr(self.terminal)
        if after != self.before:
            self.fail(f"after {how} the terminal was {self.before} and is {after}")
        os.close(self.main)
        os.close(self.terminal)

    def fail(self, why):
        self.process.kill()
        sys.exit(f"{why}: {self.seen[-20000:]!r}")
