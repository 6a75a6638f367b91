"""Runs `foretoken up` on a pseudo-terminal until it serves: loading.py EXECUTABLE MANIFEST STATE_DIR.

While a model is read, its service has a bar with the bytes that are there and all that there are.
Ctrl-C ends it.
"""

import re
import sys

from screen import Screen

executable, manifest, state = sys.argv[1:]
up = Screen([executable, "up", "-f", manifest, "--port", "0", "--state-dir", state])
up.wait("the address", lambda seen: b"curl" in seen)
for service in (b"target-0", b"draft-tiny-0"):
    bar = service + rb" +\| [^\r\n|]*?[0-9.]+ [KM]?i?B/[0-9.]+ [KM]iB"
    if re.search(bar, up.seen) is None:
        up.fail(f"no bar of {service.decode()}")
up.type(b"\x03")
up.end("Ctrl-C")
