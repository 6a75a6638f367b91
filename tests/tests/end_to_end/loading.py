"""Runs `foretoken up` on a pseudo-terminal until it serves: loading.py EXECUTABLE MANIFEST STATE_DIR.

While a model is read, its service has a bar with the bytes that are there and all that there are.
"""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

executable, manifest, state = sys.argv[1:]
main, terminal = pty.openpty()
up = subprocess.Popen(
    [executable, "up", "-f", manifest, "--port", "0", "--state-dir", state],
    stdin=subprocess.DEVNULL,
    stdout=terminal,
    stderr=terminal,
)
os.close(terminal)
seen = b""
deadline = time.monotonic() + 60
while b"curl" not in seen:
    if time.monotonic() > deadline or up.poll() is not None:
        up.kill()
        sys.exit(f"waited in vain for a line to try it with: {seen!r}")
    if select.select([main], [], [], 0.2)[0]:
        seen += os.read(main, 65536)
up.send_signal(signal.SIGINT)
up.wait(60)
for service in (b"target-0", b"draft-tiny-0"):
    bar = re.search(service + rb" +\| [^\r\n|]*?[0-9.]+ [KM]?i?B/[0-9.]+ [KM]iB", seen)
    if bar is None:
        sys.exit(f"no bar of {service.decode()}: {seen!r}")
