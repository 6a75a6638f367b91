"""An API server alone, for tests of objects: no root, no containers, no network but the loopback, ready in seconds.

Each has ports and a folder of its own, so that any number can run beside each other and beside a cluster.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import build
import cluster
import layout
import machine
import node
import programs
from layout import State

PATIENCE = 120.0


def run(command: list[str], more: list[build.Module] | None = None) -> int:
    """Runs a command for which KUBECONFIG is an API server that lives as long as it; answers how it ended.

    In its PATH are the executables of `more` too.
    """
    folders = built([build.KUBERNETES, *(more or [])])
    with tempfile.TemporaryDirectory(prefix="foretoken-api-") as folder:
        state = State(Path(folder))
        server = prepare(state, folders)
        try:
            return supervise(server, command, state)
        finally:
            # What it holds is not wanted any more.
            server.stop(grace=0)


def built(modules: list[build.Module]) -> dict[str, Path]:
    """Folders of modules, which are built if they are not there yet."""
    absent = cluster.missing_go(modules, install=True)
    if absent:
        raise cluster.MissingError(absent)
    with cluster.alone():
        return cluster.built(modules)


def prepare(state: State, folders: dict[str, Path]) -> node.Node:
    """An API server that is ready to be started."""
    for part in (state.programs, state.credentials, state.data, state.logs):
        part.mkdir(parents=True)
    layout.link(state.programs, folders)
    store, peers, port = free_ports(3)
    subprocess.run(
        [
            str(state.programs / "credentials"),
            f"--folder={state.credentials}",
            f"--server=https://127.0.0.1:{port}",
            "--hosts=127.0.0.1,localhost",
            f"--node={layout.NODE}",
        ],
        check=True,
    )
    # Should this process be killed, so are they.
    setpriv = machine.tool("setpriv")
    wrapper = [setpriv, "--pdeathsig=KILL"] if setpriv else []
    return node.Node(state, programs.alone(state, store, peers, port), wrapper)


def supervise(server: node.Node, command: list[str], state: State) -> int:
    """Keeps the server running, and the command once the server is ready."""
    ready = server.children["kube-apiserver"].program
    port = next(argument.partition("=")[2] for argument in ready.arguments if argument.startswith("--secure-port="))
    url = f"https://127.0.0.1:{port}/readyz"
    give_up = time.monotonic() + PATIENCE
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda which, _: node.signal_to(server.guest, which) if server.guest else interrupt())
    while server.outcome is None:
        server.step(time.monotonic())
        if server.guest is None and node.ready(url):
            server.guest = start(command, state)
        if server.guest is None and time.monotonic() > give_up:
            raise cluster.ClusterError(f"the API server did not come:\n{last_lines(state)}")
        time.sleep(node.TICK)
    return server.outcome if server.outcome >= 0 else 128 - server.outcome


def interrupt() -> None:
    """Leaves before the command was started."""
    raise cluster.ClusterError("interrupted")


def start(command: list[str], state: State) -> int:
    """Starts the command where kubectl finds the server; answers its number."""
    environment = os.environ | {
        "KUBECONFIG": str(state.kubeconfig),
        "PATH": f"{state.programs}:{os.environ.get('PATH', '')}",
        "FORETOKEN_TEST_API": "alone",
    }
    return os.posix_spawnp(command[0], command, environment)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback on which nothing listens.

    None is of those that systems give to whoever asks for any, which another may be given before it is bound here.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = random.randrange(15_000, 30_000)
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
        return ports


def last_lines(state: State) -> str:
    """What the programs said at last."""
    return "\n".join(line for log in sorted(state.logs.iterdir()) for line in log.read_text().splitlines()[-5:])
