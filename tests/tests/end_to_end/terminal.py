"""Talks to `foretoken chat` on a pseudo-terminal: terminal.py EXECUTABLE URL.

Ctrl-C during an answer stops the answer and not the chat; the terminal is afterwards what it was.
"""

import os
import pty
import select
import subprocess
import sys
import termios
import time

executable, url = sys.argv[1:]
main, terminal = pty.openpty()
before = termios.tcgetattr(terminal)
chat = subprocess.Popen(
    [executable, "chat", "--url", url, "--max-tokens", "1500", "--temperature", "1"],
    stdin=terminal,
    stdout=terminal,
    stderr=terminal,
    start_new_session=True,
    preexec_fn=lambda: __import__("fcntl").ioctl(0, termios.TIOCSCTTY, 0),
)
seen = b""


def wait(what, is_there):
    """Reads until `is_there` is true of what was printed since the last call."""
    global seen
    deadline = time.monotonic() + 60
    while not is_there(seen):
        if time.monotonic() > deadline:
            chat.kill()
            sys.exit(f"waited in vain for {what}: {seen!r}")
        if select.select([main], [], [], 0.1)[0]:
            try:
                seen += os.read(main, 65536)
            except OSError:
                break
    found, seen = seen, b""
    return found


def type_in(text):
    os.write(main, text)


wait("the prompt", lambda text: b"> " in text)
type_in(b"Tell me of apples\r")
wait("some of the answer", lambda text: text.count(b"\x1b[32m") > 2)
type_in(b"\x03")
wait("the end of the answer", lambda text: b"stopped" in text)
wait("the prompt again", lambda text: b"> " in text)
type_in(b"\x03")
type_in(b"And of pears\r")
wait("another answer", lambda text: text.count(b"\x1b[32m") > 2)
type_in(b"\x03")
wait("its end", lambda text: b"stopped" in text)
wait("the prompt once more", lambda text: b"> " in text)
type_in(b"\x04")
if chat.wait(60) != 0:
    sys.exit(f"chat ended with {chat.returncode}")
after = termios.tcgetattr(terminal)
if after != before:
    sys.exit(f"the terminal was {before} and is {after}")
print("ok")
