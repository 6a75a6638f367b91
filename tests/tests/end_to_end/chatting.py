"""Talks to `foretoken chat` on a pseudo-terminal: chatting.py EXECUTABLE URL PID_OF_TARGET.

Tokens that a draft had proposed are coloured. Ctrl-C stops an answer and not the chat, even one that does
not come; the terminal is afterwards what it was.
"""

import os
import signal
import sys

from screen import Screen

INTERRUPT, END_OF_INPUT = b"\x03", b"\x04"
# Colours of tokens that a draft had proposed, and of the line below an answer.
GREEN, DIM = b"\x1b[32m", b"\x1b[2m"

executable, url, target = sys.argv[1:]
chat = Screen([executable, "chat", "--url", url, "--max-tokens", "1500", "--temperature", "1"])
coloured = 0


def interrupt():
    chat.type(INTERRUPT)


def ends_with_prompt(seen):
    return DIM in seen and b"> " in seen.rsplit(DIM, 1)[1]


def is_stopped(question):
    """Asks, and interrupts the answer; it may have ended by itself just before."""
    global coloured
    chat.seen = b""
    chat.type(question + b"\r")
    chat.wait("an answer", lambda seen: GREEN in seen or DIM in seen)
    coloured += GREEN in chat.seen
    interrupt()
    chat.wait("the prompt after it", ends_with_prompt)
    return b"stopped" in chat.seen


chat.wait("the prompt", lambda seen: b"> " in seen)
if not any(is_stopped(b"Tell me of apples") for _ in range(50)):
    chat.fail("no answer could be stopped")
if coloured == 0:
    chat.fail("no token was coloured as a draft's")

os.kill(int(target), signal.SIGSTOP)
chat.seen = b""
chat.type(b"And of pears\r")
chat.wait("the end of an answer that does not come", lambda seen: b"stopped" in seen, interrupt)
os.kill(int(target), signal.SIGCONT)

# Whatever is on its way, one more interrupt shows a prompt.
chat.seen = b""
chat.wait("the last prompt", lambda seen: b"> " in seen, interrupt)
chat.type(END_OF_INPUT)
chat.end("the end of input")
