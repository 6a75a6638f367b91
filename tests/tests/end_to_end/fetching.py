"""Runs `foretoken fetch` on a pseudo-terminal: fetching.py EXECUTABLE MODEL.

While a model comes there is a bar with the bytes that are there and all that there are; afterwards the
folder's name alone.
"""

import re
import sys

from screen import Screen

executable, model = sys.argv[1:]
fetch = Screen([executable, "fetch", model])
fetch.end("the download")
name = model.removeprefix("hf://").encode()
if re.search(name + rb" .*?[0-9.]+ [KM]?i?B/[0-9.]+ MiB", fetch.seen) is None:
    fetch.fail("no bar")
if b"/snapshots/" not in fetch.seen.splitlines()[-1]:
    fetch.fail("no folder in the end")
