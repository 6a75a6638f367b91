"""Watches a running `up` by `foretoken top` on a pseudo-terminal: top.py EXECUTABLE STATE_DIR URL.

It draws, follows the terminal's size, ends by q, Ctrl-C and SIGTERM, and leaves the terminal as it
was; with a service that does not answer it says so and goes on.
"""

import json
import os
import signal
import sys
import threading
import urllib.request

from screen import Screen

executable, state_dir, url = sys.argv[1:]
ENTER, LEAVE, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


class Top(Screen):
    def __init__(self, *arguments):
        super().__init__([executable, "top", *arguments])

    def wait(self, what, is_there):
        """The same of what was seen since the last wait."""
        super().wait(what, is_there)
        self.seen = b""

    def end(self, how):
        """It leaves the screen, too."""
        super().end(how)
        if LEAVE not in self.seen or SHOW_CURSOR not in self.seen:
            self.fail(f"after {how} the screen stayed")


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
    top.resize(20, 80)
    # All of it is drawn anew.
    top.wait("the smaller screen", lambda seen: b"hidden" in seen)
    # Together with the key comes a signal.
    os.kill(top.process.pid, signal.SIGWINCH)
    top.type(b"q")
    top.end("q")

    top = Top("--state-dir", state_dir)
    top.wait("the screen", lambda seen: b"hidden" in seen)
    top.type(b"\x03")
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
top.type(b"q")
top.end("trouble and q")
