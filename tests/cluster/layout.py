"""Where everything is: folders, addresses, names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
MODULES = HERE / "go"
MANIFESTS = HERE / "manifests"

NODE = "foretoken"
# The pair of interfaces between this machine and the node, and what lies behind it.
INTERFACE = "foretoken0"
HOST_ADDRESS = "10.250.0.1"
NODE_ADDRESS = "10.250.0.2"
LINK = IPv4Network("10.250.0.0/30")
PODS = IPv4Network("10.244.0.0/16")
NODE_PODS = IPv4Network("10.244.0.0/24")
SERVICES = IPv4Network("10.96.0.0/16")
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
DOMAIN = "cluster.local"
API_PORT = 6443
API_SERVER = f"https://{NODE_ADDRESS}:{API_PORT}"
# All pods' cgroups are below this one, in each hierarchy.
CGROUP = "foretoken-cluster"
POD_IMAGE = "foretoken.test/pod:1"
DNS_IMAGE = "foretoken.test/coredns:1"
LWS_IMAGE = "foretoken.test/lws:1"
KWOK_IMAGE = "foretoken.test/kwok:1"
CERT_MANAGER_IMAGE = "foretoken.test/cert-manager:1"


def cache_folder() -> Path:
    """What is built once and kept: executables and images."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "foretoken" / "cluster"


def state_folder() -> Path:
    """All that a running cluster writes; gone when it is."""
    chosen = os.environ.get("FORETOKEN_CLUSTER_STATE")
    if chosen:
        return Path(chosen).resolve()
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "foretoken" / "cluster"


@dataclass(frozen=True)
class State:
    """The state folder's parts."""

    folder: Path

    @property
    def node(self) -> Path:
        """Which process is the node, and when it was started."""
        return self.folder / "node.json"

    @property
    def complete(self) -> Path:
        """There once the cluster could run pods."""
        return self.folder / "complete"

    @property
    def control(self) -> Path:
        """The socket on which the node takes commands."""
        return self.folder / "control.sock"

    @property
    def containerd(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def programs(self) -> Path:
        """Links to the executables of this cluster, by name."""
        return self.folder / "bin"

    @property
    def configuration(self) -> Path:
        return self.folder / "etc"

    @property
    def credentials(self) -> Path:
        return self.folder / "credentials"

    @property
    def kubeconfig(self) -> Path:
        return self.credentials / "admin.kubeconfig"

    @property
    def audit(self) -> Path:
        """What accounts of pods asked the API server, as lines of JSON."""
        return self.logs / "audit.log"

    @property
    def data(self) -> Path:
        """What the node sees as /var/lib."""
        return self.folder / "lib"

    @property
    def logs(self) -> Path:
        """What the node sees as /var/log."""
        return self.folder / "log"


def link(programs: Path, folders: dict[str, Path]) -> list[str]:
    """Gathers the executables in the folder `programs`, under the names that they are called by; answers which have changed."""
    changed = []
    for folder in folders.values():
        for executable in folder.iterdir():
            if executable.is_file() and executable.suffix != ".tar":
                entry = programs / executable.name
                if entry.is_symlink() and entry.readlink() == executable:
                    continue
                if entry.is_symlink():
                    changed.append(executable.name)
                    entry.unlink()
                entry.symlink_to(executable)
    return sorted(changed)


STATE = State(state_folder())
