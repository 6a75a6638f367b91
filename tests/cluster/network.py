"""The pair of interfaces that joins this machine with the node, and the way to pods and Services through it.

The node's network is its own: its packet filter and its settings are not the machine's. What has no address in the
cluster is not reachable from it, and nothing beyond this machine reaches the cluster.
"""

from __future__ import annotations

import json
import subprocess
from ipaddress import ip_network

from layout import HOST_ADDRESS, INTERFACE, LINK, NODE_ADDRESS, PODS, SERVICES


class NetworkError(Exception):
    """The machine's network leaves no room for the cluster's."""


def join(node: int) -> None:
    """Joins the machine's network with that of the process `node`."""
    leave()
    taken = conflicts(json.loads(_ip("-j", "-4", "route", "show", "table", "all") or "[]"))
    if taken:
        wanted = ", ".join(str(network) for network in (LINK, PODS, SERVICES))
        raise NetworkError(f"this machine already has routes to {', '.join(taken)}; the cluster needs {wanted} for itself")
    inside = ["nsenter", f"--net=/proc/{node}/ns/net"]
    prefix = LINK.prefixlen
    _ip("link", "add", INTERFACE, "type", "veth", "peer", "name", "eth0", "netns", str(node))
    _ip("address", "add", f"{HOST_ADDRESS}/{prefix}", "dev", INTERFACE)
    _ip("link", "set", INTERFACE, "up")
    _ip("address", "add", f"{NODE_ADDRESS}/{prefix}", "dev", "eth0", before=inside)
    _ip("link", "set", "lo", "up", before=inside)
    _ip("link", "set", "eth0", "up", before=inside)
    # Services have no interface; programs of the node need some way to them before their addresses are replaced.
    _ip("route", "add", str(SERVICES), "dev", "eth0", "src", NODE_ADDRESS, before=inside)
    _run([*inside, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])
    for network in (PODS, SERVICES):
        _ip("route", "add", str(network), "via", NODE_ADDRESS, "dev", INTERFACE)


def leave() -> None:
    """Removes this machine's end, and with it the routes."""
    subprocess.run(["ip", "link", "delete", INTERFACE], stderr=subprocess.DEVNULL, check=False)


def conflicts(routes: list[dict]) -> list[str]:
    """Networks that routes lead to and that the cluster wants for itself."""
    found = []
    for route in routes:
        if route.get("dst") == "default" or route.get("dev") == INTERFACE:
            continue
        destination = ip_network(route["dst"], strict=False)
        if any(destination.overlaps(network) for network in (LINK, PODS, SERVICES)):
            found.append(route["dst"])
    return found


def _ip(*arguments: str, before: list[str] | None = None) -> str:
    return _run([*(before or []), "ip", *arguments])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise NetworkError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
