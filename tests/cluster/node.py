"""The node: the first process of a small world of its own, in which all programs of the cluster run.

It is started with own processes, mounts and network (`unshare`), so ending this one process ends everything that ever
ran there, and its mounts, interfaces and packet filter rules with it. Outside there are left: a folder, cgroups, and
the interface that leads here; `cluster` removes these.

    cluster up -> unshare -> node: hide the machine's folders -> wait for the network -> programs, started again
                                   when they end -> commands on a socket, until told to stop

Standard library only, one thread, no child is waited for by anybody else: orphans end up here too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from layout import State
from programs import Program, programs

# The kubelet wants these settings of the whole machine. It sees what it wants; the machine keeps what it has.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
# For servers that need not prove who they are to their neighbour.
UNPROVEN = ssl._create_unverified_context()
TICK = 0.1
FIRST_DELAY = 0.5
LONGEST_DELAY = 10.0
GRACE = 5.0


@dataclass
class Child:
    """One program and how it fares."""

    program: Program
    wanted: bool = True
    pid: int | None = None
    starts: int = 0
    # When it may be started again, and how long the next pause is.
    due: float = 0.0
    delay: float = FIRST_DELAY
    started: float = field(default=0.0)


class Node:
    """Keeps programs running."""

    def __init__(self, state: State, children: list[Program], wrapper: list[str] | None = None) -> None:
        self.state = state
        # A command that becomes each program.
        self.wrapper = wrapper or []
        self.children = {program.name: Child(program) for program in children}
        self.stopping = False
        # A process that is not kept running, and how it ended.
        self.guest: int | None = None
        self.outcome: int | None = None

    def step(self, now: float) -> None:
        """Buries what has ended and starts what is due."""
        self.bury(now)
        if self.stopping:
            return
        for child in self.children.values():
            if child.wanted and child.pid is None and now >= child.due and ready(child.program.after):
                self.start(child, now)

    def bury(self, now: float) -> None:
        """Takes the status of every process that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.guest:
                self.outcome = os.waitstatus_to_exitcode(status)
                continue
            child = next((child for child in self.children.values() if child.pid == pid), None)
            if child is None:
                continue
            child.pid = None
            if now - child.started > LONGEST_DELAY:
                child.delay = FIRST_DELAY
            child.due, child.delay = now + child.delay, min(2 * child.delay, LONGEST_DELAY)
            if child.wanted and not self.stopping:
                self.say(f"{child.program.name} ended ({os.waitstatus_to_exitcode(status)}) and will be started again")

    def start(self, child: Child, now: float) -> None:
        """Starts one program, its output going to a file of its own."""
        name = child.program.name
        executable = str(self.state.programs / name)
        environment = {
            "HOME": str(self.state.data),
            "PATH": f"{self.state.programs}:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        output = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.state.logs / f"{name}.log"), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        command = [*self.wrapper, executable, *child.program.arguments]
        child.pid = os.posix_spawn(
            command[0], command, environment, file_actions=output, setsid=True, setsigmask=[], setsigdef=[signal.SIGTERM]
        )
        child.starts += 1
        child.started = now
        self.say(f"started {name} as {child.pid}")

    def stop(self, grace: float = GRACE) -> None:
        """Ends the programs, last first, and those that are left after a while the hard way."""
        self.stopping = True
        for child in reversed(list(self.children.values())):
            signal_to(child.pid, signal.SIGTERM)
        self.buried(grace)
        for child in self.children.values():
            signal_to(child.pid, signal.SIGKILL)
        self.buried(GRACE)

    def buried(self, seconds: float) -> None:
        """Waits until all programs have ended, but not for ever."""
        until = time.monotonic() + seconds
        while any(child.pid for child in self.children.values()) and time.monotonic() < until:
            self.bury(time.monotonic())
            time.sleep(TICK / 10)

    def say(self, what: str) -> None:
        """Writes a line of the node's own log."""
        with (self.state.logs / "node.log").open("a") as log:
            print(time.strftime("%H:%M:%S"), what, file=log)

    def command(self, request: dict) -> dict:
        """Does what was asked on the socket."""
        verb, name = request.get("do"), request.get("program")
        if verb == "status":
            return {"programs": [self.status(child) for child in self.children.values()]}
        child = self.children.get(name)
        if child is None:
            return {"error": f"there is no program {name!r}; there are: {', '.join(self.children)}"}
        if verb == "stop":
            child.wanted = False
            signal_to(child.pid, signal.SIGTERM)
        elif verb == "kill":
            signal_to(child.pid, signal.SIGKILL)
        elif verb == "start":
            child.wanted, child.due, child.delay = True, 0.0, FIRST_DELAY
        else:
            return {"error": f"cannot {verb!r}; it can: status, start, stop, kill"}
        return {}

    @staticmethod
    def status(child: Child) -> dict:
        """What is known of one program."""
        return {
            "name": child.program.name,
            "pid": child.pid,
            "starts": child.starts,
            "memory_bytes": resident(child.pid) if child.pid else 0,
        }


def ready(url: str) -> bool:
    """Whether a program of this node says that it can serve."""
    if not url:
        return True
    try:
        with urllib.request.urlopen(url, timeout=0.5, context=UNPROVEN) as answer:
            return answer.status == 200
    except OSError:
        return False


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def signal_to(pid: int | None, which: signal.Signals) -> None:
    """Sends a signal to a child that may have ended meanwhile."""
    if pid is not None:
        try:
            os.kill(pid, which)
        except ProcessLookupError:
            pass


def run(*command: str) -> None:
    """Runs a command of the machine, which has to succeed."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def isolate(state: State) -> None:
    """Puts the node's own folders where programs look for the machine's."""
    # Mounts were made private by `unshare`; the kubelet wants to share them with pods, which stays in here.
    run("mount", "--make-rshared", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "--bind", str(state.data), "/var/lib")
    run("mount", "--bind", str(state.logs), "/var/log")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    settings = Path("/run/kernel")
    for name, value in KERNEL_SETTINGS.items():
        shown = settings / name
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(f"{value}\n")
        run("mount", "--bind", str(shown), f"/proc/sys/{name}")


def serve(node: Node, listener: socket.socket) -> None:
    """Keeps the programs running and answers commands until the node is told to stop."""
    while not node.stopping:
        node.step(time.monotonic())
        try:
            connection, _ = listener.accept()
        except socket.timeout:
            continue
        with connection:
            connection.settimeout(2)
            try:
                request = json.loads(connection.makefile().readline())
                connection.sendall(json.dumps(node.command(request)).encode() + b"\n")
            except (OSError, ValueError) as error:
                node.say(f"a command was not understood: {error}")
    node.stop()


def main(folder: str) -> None:
    """Becomes the node that `cluster` has prepared in a folder."""
    state = State(Path(folder))
    # /proc is still the machine's: this is the number by which others know this process.
    pid = int(os.readlink("/proc/self"))
    start = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
    isolate(state)
    node = Node(state, programs(state))

    def stop(*_: object) -> None:
        node.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(state.control))
        listener.listen()
        listener.settimeout(TICK)
        partial = state.node.with_suffix(".partial")
        partial.write_text(json.dumps({"pid": pid, "start": int(start)}))
        partial.replace(state.node)
        # The network is made from outside; its far end is there once this file is.
        while not node.stopping and not (state.folder / "network").exists():
            time.sleep(0.02)
        serve(node, listener)


if __name__ == "__main__":
    main(sys.argv[1])
