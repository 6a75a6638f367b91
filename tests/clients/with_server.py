"""Runs a command against `foretoken up` on the models of this repository.

usage: with_server.py PATH_TO_FORETOKEN COMMAND...

The command gets the server's address as its last argument. Exits as the command does, or with 1 if
the server does not start or does not end well.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
STARTUP_SECONDS = 120
DRAIN_SECONDS = 60


def wait_until_ready(server, state):
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"foretoken up ended with {server.returncode}")
        if state.exists():
            content = json.loads(state.read_text())
            if content["ready"]:
                return content["url"]
        time.sleep(0.1)
    server.kill()
    sys.exit("foretoken up did not become ready")


@contextlib.contextmanager
def server(executable, manifest=ROOT / "examples/laptop.yaml"):
    """Runs `foretoken up` and yields its address; the server has to end well."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["-f", str(manifest), "--port", "0", "--state-dir", folder]
        process = subprocess.Popen(
            [executable, "up", *arguments],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "RUST_LOG": "warn"},
        )
        try:
            yield wait_until_ready(process, pathlib.Path(folder, "state.json"))
        finally:
            process.send_signal(signal.SIGTERM)
            ended = process.wait(DRAIN_SECONDS)
    if ended != 0:
        sys.exit(f"foretoken up ended with {ended}")


def main():
    executable, *command = sys.argv[1:]
    with server(executable) as url:
        code = subprocess.run([*command, url]).returncode
    sys.exit(code)


if __name__ == "__main__":
    main()
