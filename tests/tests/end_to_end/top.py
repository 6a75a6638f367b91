"""Watches a running `up` by `foretoken top` on a pseudo-terminal: top.py EXECUTABLE STATE_DIR URL.

It draws, follows the terminal's size, ends by q, Ctrl-C and SIGTERM, and leaves the terminal as it
was; with a service that does not answer it says so and goes on.
"""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request

executable, state_dir, url = sys.argv[1:]
ENTER, LEAVE, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
PATIENCE = 60


def resize(terminal, rows, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Top:
    def __init__(self, *arguments):
        self.main, self.terminal = pty.openpty()
        resize(self.terminal, 40, 132)
        self.before = termios.tcgetattr(self.terminal)
        self.seen = b""
        self.process = subprocess.Popen(
            [executable, "top", *arguments],
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=self.terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def read(self, patience=0.2):
        if select.select([self.main], [], [], patience)[0]:
            self.seen += os.read(self.main, 65536)

    def wait(self, what, is_there):
        """Reads on until `is_there` is true of what was seen since the last wait."""
        deadline = time.monotonic() + PATIENCE
        while not is_there(self.seen):
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.process.kill()
                sys.exit(f"waited in vain for {what}: {self.seen[:20000]!r}")
            self.read()
        self.seen = b""

    def end(self, how):
        """It ends well, and everything is as it was."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.05)
        for _ in range(20):
            self.read(0.01)
        if self.process.poll() != 0:
            self.process.kill()
            sys.exit(f"after {how} it ended with {self.process.returncode}: {self.seen!r}")
        if LEAVE not in self.seen or SHOW_CURSOR not in self.seen:
            sys.exit(f"after {how} the screen stayed: {self.seen!r}")
        after = termios.tcgetattr(self.terminal)
        if after != self.before:
            sys.exit(f"after {how} the terminal was {self.before} and is {after}")
        os.close(self.main)
        os.close(self.terminal)


def ask(stop):
    """Keeps the services busy."""
    request = {"model": "story", "prompt": "Tom", "max_tokens": 300, "ignore_eos": True}
    request["foretoken"] = {"policy": "SSD", "lookahead": 4}
    body = json.dumps(request).encode()
    while not stop.is_set():
        header = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body, header)).read()


stop = threading.Event()
busy = threading.Thread(target=ask, args=[stop])
busy.start()
try:
    top = Top("--state-dir", state_dir, "--interval", "0.2")
    words = [ENTER, b"hidden", b"target-0", b"draft-tiny-0", b"router", b"SSD"]
    top.wait("the screen", lambda seen: all(word in seen for word in words))
    # Rounds are drawn as bars, and go on.
    for _ in range(3):
        top.wait("rounds", lambda seen: "█".encode() in seen)
    resize(top.terminal, 20, 80)
    # All of it is drawn anew.
    top.wait("the smaller screen", lambda seen: b"hidden" in seen)
    # Together with the key comes a signal.
    os.kill(top.process.pid, signal.SIGWINCH)
    os.write(top.main, b"q")
    top.end("q")

    top = Top("--state-dir", state_dir)
    top.wait("the screen", lambda seen: b"hidden" in seen)
    os.write(top.main, b"\x03")
    top.end("Ctrl-C")

    top = Top("--state-dir", state_dir)
    top.wait("the screen", lambda seen: b"hidden" in seen)
    top.process.send_signal(signal.SIGTERM)
    top.end("SIGTERM")
finally:
    stop.set()
    busy.join()

# Nobody listens at port 1.
top = Top("--address", "127.0.0.1:1")
top.wait("the trouble", lambda seen: b"down" in seen and b"trying" in seen)
os.write(top.main, b"q")
top.end("trouble and q")
