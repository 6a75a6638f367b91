"""Talks to `foretoken chat` on a pseudo-terminal: chatting.py EXECUTABLE URL PID_OF_TARGET.

Ctrl-C stops an answer and not the chat, even one that does not come; the terminal is afterwards
what it was.
"""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

INTERRUPT = b"\x03"
END_OF_INPUT = b"\x04"
# Colours of tokens that a draft had proposed, and of the line below an answer.
GREEN, DIM = b"\x1b[32m", b"\x1b[2m"

executable, url, target = sys.argv[1:]
main, terminal = pty.openpty()
before = termios.tcgetattr(terminal)
chat = subprocess.Popen(
    [executable, "chat", "--url", url, "--max-tokens", "1500", "--temperature", "1"],
    stdin=terminal,
    stdout=terminal,
    stderr=terminal,
    start_new_session=True,
    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
)


def listen(seen, what, is_there, meanwhile=lambda: None):
    """Reads on until `is_there` is true of all that was seen; returns that."""
    deadline = time.monotonic() + 60
    while not is_there(seen):
        if time.monotonic() > deadline or chat.poll() is not None:
            chat.kill()
            sys.exit(f"waited in vain for {what}: {seen!r}")
        if select.select([main], [], [], 0.2)[0]:
            seen += os.read(main, 65536)
        else:
            meanwhile()
    return seen


def ends_with_prompt(seen):
    return DIM in seen and b"> " in seen.rsplit(DIM, 1)[1]


coloured = 0


def is_stopped(question):
    """Asks, and interrupts the answer; it may have ended by itself just before."""
    global coloured
    os.write(main, question + b"\r")
    seen = listen(b"", "an answer", lambda seen: GREEN in seen or DIM in seen)
    coloured += GREEN in seen
    os.write(main, INTERRUPT)
    return b"stopped" in listen(seen, "the prompt after it", ends_with_prompt)


listen(b"", "the prompt", lambda seen: b"> " in seen)
if not any(is_stopped(b"Tell me of apples") for _ in range(50)):
    sys.exit("no answer could be stopped")
if coloured == 0:
    sys.exit("no token was coloured as a draft's")

os.kill(int(target), signal.SIGSTOP)
os.write(main, b"And of pears\r")
interrupt = lambda: os.write(main, INTERRUPT)
listen(b"", "the end of an answer that does not come", lambda seen: b"stopped" in seen, interrupt)
os.kill(int(target), signal.SIGCONT)

# Whatever is on its way, one more interrupt shows a prompt.
listen(b"", "the last prompt", lambda seen: b"> " in seen, interrupt)
os.write(main, END_OF_INPUT)
deadline = time.monotonic() + 60
while chat.poll() is None and time.monotonic() < deadline:
    if select.select([main], [], [], 0.1)[0]:
        os.read(main, 65536)
if chat.poll() != 0:
    chat.kill()
    sys.exit(f"chat ended with {chat.returncode}")
after = termios.tcgetattr(terminal)
if after != before:
    sys.exit(f"the terminal was {before} and is {after}")
