"""Brings the cluster up and takes it down again."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator

import addons
import build
import layout
import machine
import network
import programs
from layout import CGROUP, NODE, STATE

# On 2 busy cores all of it takes 20 s; what takes this long does not come.
PATIENCE = 240.0


class ClusterError(Exception):
    """Something that the user has to know of."""


class MissingError(ClusterError):
    """This machine lacks what the cluster needs."""

    def __init__(self, absent: list[machine.Missing]) -> None:
        lines = "\n".join(f"  {one.what}: {one.remedy}" for one in absent)
        super().__init__(f"this cannot be started here, missing:\n{lines}")


@contextmanager
def alone() -> Iterator[None]:
    """Holds off other commands that start or stop the cluster of this machine."""
    folder = layout.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def requirements(install: bool) -> list[machine.Missing]:
    """What is missing to build and run the cluster, after trying to get it if asked to."""
    absent = machine.missing()
    if install and absent:
        machine.install(absent)
        absent = machine.missing()
    return absent + missing_go(build.ALWAYS, install)


def missing_go(modules: list[build.Module], install: bool) -> list[machine.Missing]:
    """Go, if it is needed to build these and is neither there nor can be got."""
    if not build.missing(modules) or machine.go() is not None or (install and machine.install_go()):
        return []
    oldest = ".".join(str(part) for part in machine.OLDEST_GO)
    return [machine.Missing("Go", f"install Go {oldest} or newer (https://go.dev/dl)")]


def built(modules: list[build.Module]) -> dict[str, Path]:
    """Folders of modules, which are built if they are not there yet."""
    if build.missing(modules):
        go = machine.go()
        if go is None:
            raise ClusterError("there is no Go to build the cluster's programs with")
        for left in layout.cache_folder().glob(f"{build.PARTIAL}*"):
            shutil.rmtree(left)
        for module in modules:
            build.build(module, go)
    folders = {module.name: build.place(module) for module in modules}
    for folder in folders.values():
        # What is used is kept.
        os.utime(folder)
    return folders


def up(names: list[str]) -> None:
    """Starts the cluster unless it runs, waits until it can run pods, and installs the addons named."""
    absent = requirements(install=True)
    if absent:
        raise MissingError(absent)
    with alone():
        folders = built([*build.ALWAYS, *addons.modules(names)])
        begin = time.monotonic()
        if node() is None or not STATE.complete.exists():
            end()
            start(folders)
            print(f"the cluster is up after {time.monotonic() - begin:.1f} s", flush=True)
        else:
            other = layout.link(STATE.programs, folders)
            if other:
                print(f"the cluster runs already, with other versions of {', '.join(other)}; `make cluster-down` ends it")
        for name in names:
            install(name)


def install(name: str) -> None:
    """Installs an addon that has been built."""
    for module in addons.ADDONS[name].modules:
        if module.image:
            load(build.place(module) / "image.tar")
    for folder in addons.ADDONS[name].definitions:
        kubectl("apply", "--server-side", "-f", str(addons.kept(name, folder)))
    for release, arguments in zip(addons.ADDONS[name].releases, addons.commands(name)):
        said = helm(*arguments)
        if release.templates:
            apply(release.namespace, said)


def apply(namespace: str, objects: str) -> None:
    """Applies objects (YAML) of a namespace, which is made if it is not there, and waits for their pods."""
    place = json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    kubectl("apply", "--server-side", "-f", "-", stdin=f"{place}\n---\n{objects}")
    kubectl("rollout", "status", "deployment", f"--namespace={namespace}", "--timeout=180s")


def start(folders: dict[str, Path]) -> None:
    """Starts a cluster where there is none."""
    prepare(folders)
    launch()
    wait("the API server", lambda: kubectl("get", "--raw=/readyz", quiet=True) == "ok")
    for name in ("pod", "coredns"):
        load(folders[name] / "image.tar")
    wait("the name service", lambda: kubectl("apply", "-f", str(layout.MANIFESTS / "coredns.yaml"), quiet=True))
    wait("the node", lambda: _ready("nodes", NODE, "Ready"))
    wait("names", lambda: _ready("deployments", "coredns", "Available", "--namespace=kube-system"))
    STATE.complete.touch()


def prepare(folders: dict[str, Path]) -> None:
    """Writes all that the programs read."""
    if len(str(STATE.containerd)) > 100:
        raise ClusterError(f"{STATE.folder} is too long a path for sockets, set FORETOKEN_CLUSTER_STATE to a shorter one")
    for hidden in ("/run", "/var/lib", "/var/log", "/proc"):
        if Path(hidden) in STATE.folder.parents:
            raise ClusterError(f"the state cannot be in {hidden}, set FORETOKEN_CLUSTER_STATE to another folder")
    for folder in (STATE.programs, STATE.configuration / "cni", STATE.credentials, STATE.data, STATE.logs):
        folder.mkdir(parents=True, exist_ok=True)
    STATE.folder.chmod(0o700)
    layout.link(STATE.programs, folders)
    runc = machine.tool("runc") or "runc"
    for path, content in programs.files(STATE, runc, machine.cni_folders(), _snapshotter()).items():
        path.write_text(content)
    credentials = [f"--folder={STATE.credentials}", f"--server={layout.API_SERVER}", f"--node={NODE}"]
    _run([str(STATE.programs / "credentials"), *credentials, f"--hosts={','.join(programs.hosts())}"])
    for hierarchy in machine.cgroup_roots():
        (hierarchy / CGROUP).mkdir(exist_ok=True)
        _inherit_cpuset(hierarchy)


def launch() -> None:
    """Starts the node and gives it a network."""
    separate = ["unshare", "--mount", "--propagation=private", "--net", "--pid", "--fork", "--kill-child"]
    with (STATE.logs / "node.log").open("ab") as log:
        process = subprocess.Popen(
            [*separate, sys.executable, str(layout.HERE / "node.py"), str(STATE.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    wait("the node's process", lambda: node() is not None or process.poll() is not None)
    pid = node()
    if pid is None:
        raise ClusterError(f"the node has ended:\n{(STATE.logs / 'node.log').read_text()}")
    network.join(pid)
    (STATE.folder / "network").touch()


def down() -> None:
    """Ends the cluster and removes every trace of it but the cache."""
    with alone():
        end()


def end() -> None:
    """Ends the node, if there is one, and clears up after it."""
    pid = node()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        if not _until(lambda: node() is None, 15):
            os.kill(pid, signal.SIGKILL)
            _until(lambda: node() is None, 15)
    clear()


def clear() -> None:
    """Removes what a node that has ended, in whatever way, left on this machine."""
    network.leave()
    for hierarchy in machine.cgroup_roots():
        _until(lambda root=hierarchy / CGROUP: _remove_cgroup(root), 10)
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    inside = [mount for mount in mounts if Path(mount).is_relative_to(STATE.folder)]
    if inside:
        raise ClusterError(f"not removing {STATE.folder}: {', '.join(inside)} is mounted there")
    if STATE.folder.exists():
        shutil.rmtree(STATE.folder)


def node() -> int | None:
    """The node's process, if it lives: the number alone may be somebody else's by now."""
    try:
        known = json.loads(STATE.node.read_text())
        start = int(Path(f"/proc/{known['pid']}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return known["pid"] if start == known["start"] else None


def running() -> None:
    """Says so if the cluster does not run."""
    if node() is None:
        raise ClusterError("the cluster is not running, `make cluster` starts it")


def ask(request: dict) -> dict:
    """Has the node do something."""
    running()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(str(STATE.control))
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(connection.makefile().readline())
    if "error" in answer:
        raise ClusterError(answer["error"])
    return answer


def environment() -> dict[str, str]:
    """What tells other programs of this cluster."""
    return os.environ | {"KUBECONFIG": str(STATE.kubeconfig), "PATH": f"{STATE.programs}:{os.environ.get('PATH', '')}"}


def load(archive: Path) -> None:
    """Gives the node an image, which its pods can use with `imagePullPolicy: Never` or `IfNotPresent`."""
    ctr("images", "import", str(archive))


def ctr(*arguments: str) -> str:
    """What containerd's client prints, of what the kubelet sees."""
    # A relative path would be taken for an address without an authority.
    return _run([str(STATE.programs / "ctr"), f"--address={STATE.containerd}", "--namespace=k8s.io", *arguments])


def helm(*arguments: str) -> str:
    """What Helm prints, on this cluster."""
    # It keeps what it has seen; here too nothing is to remain.
    environment = os.environ | {f"HELM_{kind}_HOME": str(STATE.folder / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
    return _run([str(STATE.programs / "helm"), f"--kubeconfig={STATE.kubeconfig}", *arguments], environment)


def kubectl(*arguments: str, quiet: bool = False, stdin: str | None = None) -> str | None:
    """What kubectl prints; nothing if it fails and may."""
    command = [str(STATE.programs / "kubectl"), f"--kubeconfig={STATE.kubeconfig}", *arguments]
    done = subprocess.run(command, input=stdin, text=True, capture_output=True, check=False)
    if done.returncode == 0:
        return done.stdout
    if quiet:
        return None
    raise ClusterError(f"`kubectl {' '.join(arguments)}` failed: {done.stderr.strip()}")


def wait(what: str, condition: Callable[[], object]) -> None:
    """Waits until a condition holds."""
    if not _until(condition, PATIENCE):
        raise ClusterError(f"{what} did not come within {PATIENCE:.0f} s; logs are in {STATE.logs}")


def _until(condition: Callable[[], object], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _ready(kind: str, name: str, condition: str, *more: str) -> bool:
    path = f'jsonpath={{.status.conditions[?(@.type=="{condition}")].status}}'
    return kubectl("get", kind, name, "-o", path, *more, quiet=True) == "True"


def _snapshotter() -> str:
    """How images become root file systems: on an overlay, another overlay cannot be made."""
    done = _run(["stat", "--file-system", "--format=%T", str(STATE.folder)])
    return "native" if done.strip() == "overlayfs" else "overlayfs"


def _inherit_cpuset(hierarchy: Path) -> None:
    """Gives a new cgroup of version 1 the cores and memory of its parent, without which it takes no process."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        own = hierarchy / CGROUP / name
        if own.exists() and (hierarchy / name).exists() and not own.read_text().strip():
            own.write_text((hierarchy / name).read_text())


def _remove_cgroup(root: Path) -> bool:
    """Removes a cgroup and those below it; whether nothing is left."""
    if root.exists():
        for folder, _, _ in os.walk(root, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                return False
    return True


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, text=True, capture_output=True, env=environment, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
