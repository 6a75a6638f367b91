"""Runs `foretoken up` on a pseudo-terminal until it serves: loading.py EXECUTABLE MANIFEST STATE_DIR.

While a model is read, its service has a bar with the bytes that are there and all that there are.
Ctrl-C ends it.
"""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

PATIENCE = 120

executable, manifest, state = sys.argv[1:]
main, terminal = pty.openpty()
up = subprocess.Popen(
    [executable, "up", "-f", manifest, "--port", "0", "--state-dir", state],
    stdin=subprocess.DEVNULL,
    stdout=terminal,
    stderr=terminal,
)
os.close(terminal)


def listen(seen, is_enough):
    """Reads on until that is true of all that was seen, or `up` has ended; returns it."""
    deadline = time.monotonic() + PATIENCE
    while not is_enough(seen):
        if time.monotonic() > deadline:
            sys.exit(f"waited in vain: {seen!r}")
        if select.select([main], [], [], 0.2)[0]:
            try:
                seen += os.read(main, 65536)
            except OSError:  # nobody has the other end any more
                break
    return seen


try:
    seen = listen(b"", lambda seen: b"curl" in seen)
    for service in (b"target-0", b"draft-tiny-0"):
        bar = service + rb" +\| [^\r\n|]*?[0-9.]+ [KM]?i?B/[0-9.]+ [KM]iB"
        if re.search(bar, seen) is None:
            sys.exit(f"no bar of {service.decode()}: {seen!r}")
    up.send_signal(signal.SIGINT)
    seen = listen(seen, lambda seen: False)
    if up.wait(PATIENCE) != 0:
        sys.exit(f"ended with {up.returncode}: {seen!r}")
finally:
    up.kill()
