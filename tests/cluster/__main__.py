"""A real Kubernetes on this machine, for tests: see docs/cluster.md."""

from __future__ import annotations

import argparse
import os
import sys
import unittest
from pathlib import Path

import addons
import build
import cluster
import layout
import machine
import network
from layout import STATE

# Of sysexits.h, as `foretoken` uses them: something that is needed is not there.
UNAVAILABLE = 69


def arguments() -> argparse.Namespace:
    """What the user wants."""
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the cluster, or leave it if it runs")
    test = commands.add_parser("test", help="start it if need be, and see that it does what tests rely on")
    for one in (up, test):
        one.add_argument("--with", dest="names", default="", metavar="NAMES", help=f"also: {', '.join(addons.ADDONS)}")
    commands.add_parser("down", help="end the cluster and remove all that it made")
    commands.add_parser("status", help="which programs run, and their memory")
    commands.add_parser("check", help="whether this machine can run the cluster; changes nothing")
    load = commands.add_parser("load", help="give the node images (OCI archives)")
    load.add_argument("archives", nargs="+", type=Path)
    for verb, what in (("stop", "end a program until it is started"), ("start", "start it again"), ("kill", "kill it; the node starts it again")):
        commands.add_parser(verb, help=what).add_argument("program")
    commands.add_parser("kubectl", help="kubectl, on this cluster", add_help=False)
    wanted, rest = parser.parse_known_args()
    if rest and wanted.command != "kubectl":
        parser.error(f"unknown arguments: {' '.join(rest)}")
    # Options are kubectl's own, wherever they stand.
    wanted.rest = rest
    return wanted


def main() -> int:
    """Does it, and answers the exit status."""
    wanted = arguments()
    try:
        return run(wanted)
    except (cluster.ClusterError, build.BuildError, network.NetworkError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


def run(wanted: argparse.Namespace) -> int:
    """One command."""
    if wanted.command == "up":
        cluster.up(named(wanted.names))
        print(f"\n  export KUBECONFIG={STATE.kubeconfig}\n  export PATH={STATE.programs}:$PATH\n  kubectl get pods -A\n")
    elif wanted.command == "down":
        cluster.down()
    elif wanted.command == "test":
        return test(named(wanted.names))
    elif wanted.command == "check":
        return check()
    elif wanted.command == "status":
        status()
    elif wanted.command == "load":
        for archive in wanted.archives:
            cluster.load(archive.resolve())
    elif wanted.command == "kubectl":
        os.environ["KUBECONFIG"] = str(STATE.kubeconfig)
        os.execv(STATE.programs / "kubectl", ["kubectl", *wanted.rest])
    else:
        cluster.ask({"do": wanted.command, "program": wanted.program})
    return 0


def named(names: str) -> list[str]:
    """The addons that the user named."""
    found = [name for name in names.split(",") if name]
    unknown = [name for name in found if name not in addons.ADDONS]
    if unknown:
        raise cluster.ClusterError(f"there is no {', '.join(unknown)}; there are: {', '.join(addons.ADDONS)}")
    return found


def check() -> int:
    """Says what is missing."""
    absent = cluster.requirements(install=False)
    for one in absent:
        print(f"missing: {one.what}: {one.remedy}")
    unbuilt = build.missing(build.ALWAYS)
    if not absent:
        print("this machine can run the cluster" + (f"; to be built: {', '.join(m.name for m in unbuilt)}" if unbuilt else ""))
    return UNAVAILABLE if absent else 0


def test(names: list[str]) -> int:
    """Runs the tests of the cluster, or says loudly that it cannot."""
    mode = os.environ.get("FORETOKEN_TEST_CLUSTER", "")
    if mode not in ("", "existing", "required"):
        raise cluster.ClusterError(f"FORETOKEN_TEST_CLUSTER is {mode!r}; it can be existing or required")
    if mode != "existing":
        absent = cluster.requirements(install=True)
        if absent:
            for one in absent:
                print(f"missing: {one.what}: {one.remedy}", file=sys.stderr)
            print("NOT RUN: the tests that need a cluster (docs/cluster.md)", file=sys.stderr)
            return UNAVAILABLE if mode == "required" else 0
        cluster.up(names)
        go = machine.go()
        if go is not None and not build.test(build.KUBERNETES, go):
            return 1
    suite = unittest.defaultTestLoader.loadTestsFromNames(["on_cluster", "on_api"])
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


def status() -> None:
    """Prints a table of the programs."""
    for program in cluster.ask({"do": "status"})["programs"]:
        state = f"pid {program['pid']}" if program["pid"] else "not running"
        print(f"{program['name']:<24} {state:<12} {program['memory_bytes'] / 2**20:7.0f} MiB  starts: {program['starts']}")
    print(f"state in {layout.STATE.folder}")


if __name__ == "__main__":
    sys.exit(main())
