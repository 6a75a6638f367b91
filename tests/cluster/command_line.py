"""A real Kubernetes on this machine, for tests: see docs/cluster.md."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Callable, Sequence

import addons
import api
import build
import cluster
import drafts
import layout
import machine
import network
import service
import where
from layout import STATE

# Of sysexits.h, as `foretoken` uses them: something that is needed is not there.
UNAVAILABLE = 69
# What is tested on the cluster, in this order: the last one looks back on all.
SUITES = ("on_cluster", "on_service", "on_trouble", "on_groups", "on_certificates", "on_rights")
# What is tested on an API server alone: objects of our kinds, and the chart.
API_TESTS = ["env", f"PYTHONPATH={layout.HERE}", sys.executable, "-m", "unittest", "--verbose", "on_chart", "on_api"]


def arguments(words: list[str]) -> argparse.Namespace:
    """What the user wants."""
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the cluster, or leave it if it runs")
    test = commands.add_parser("test", help="start it if need be, and see that it does what tests rely on")
    for one in (up, test):
        one.add_argument("--with", dest="names", default="", metavar="NAMES", help=f"also: {', '.join(addons.ADDONS)}")
    serve = commands.add_parser("serve", help="start it if need be, install the chart and apply examples/shared-endpoint.yaml")
    serve.add_argument("--images", type=Path, required=True, metavar="FOLDER", help="where `make image` put them")
    images = commands.add_parser("images", help="make the images that tests need, for a cluster that is there already")
    images.add_argument("folder", type=Path)
    commands.add_parser("test-api", help="see that an API server judges objects of our kinds as `foretoken check` does, and takes the chart")
    commands.add_parser("test-groups", help="see that a target that spans pods is made, served, rolled and replaced whole")
    commands.add_parser("test-certificates", help="see that all serve with certificates that the real cert-manager issues, and renews")
    commands.add_parser("test-telemetry", help="see that a collector gets traces, and when alert rules fire")
    commands.add_parser("down", help="end the cluster and remove all that it made")
    commands.add_parser("prepare", help="build what tests of the cluster need, which they do themselves when it is missing")
    commands.add_parser("status", help="which programs run, and their memory")
    commands.add_parser("check", help="whether this machine can run the cluster; changes nothing")
    commands.add_parser("programs", help="print the folder with etcd, kube-apiserver, kubectl and so on, which are built if need be")
    load = commands.add_parser("load", help="give the node images (OCI archives)")
    load.add_argument("archives", nargs="+", type=Path)
    verbs = {"stop": "end a program until it is started", "start": "start it again", "kill": "kill it; the node starts it again"}
    for verb, what in verbs.items():
        commands.add_parser(verb, help=what).add_argument("program")
    passing = {
        "kubectl": "kubectl, on this cluster",
        "run": "run a command for which KUBECONFIG is this cluster: run COMMAND...",
        "api": "run a command for which KUBECONFIG is an API server of its own: api COMMAND...",
    }
    for verb, what in passing.items():
        commands.add_parser(verb, help=what)
    # All that follows is the other command's, whatever it looks like.
    if words[:1] and words[0] in passing and words[1:] not in ([], ["-h"], ["--help"]):
        return argparse.Namespace(command=words[0], rest=words[1:])
    wanted = parser.parse_args(words)
    if wanted.command in passing:
        parser.error("say which command to run")
    return wanted


def main() -> int:
    """Does it, and answers the exit status."""
    wanted = arguments(sys.argv[1:])
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
    elif wanted.command == "serve":
        service.up(wanted.images.resolve())
    elif wanted.command == "down":
        cluster.down()
    elif wanted.command == "images":
        images(wanted.folder.resolve())
    elif wanted.command == "test":
        return unless_impossible(lambda: test(named(wanted.names)))
    elif wanted.command == "test-api":
        return unless_impossible(lambda: api.run(API_TESTS, [build.HELM, build.LWS]))
    elif wanted.command == "test-groups":
        return unless_impossible(lambda: test(["helm"], ["on_groups"]))
    elif wanted.command == "test-certificates":
        return unless_impossible(lambda: test(["helm"], ["on_certificates"]))
    elif wanted.command == "test-telemetry":
        return unless_impossible(test_telemetry)
    elif wanted.command == "api":
        return api.run(wanted.rest)
    elif wanted.command == "check":
        return check()
    elif wanted.command == "programs":
        print(api.built([build.KUBERNETES])[build.KUBERNETES.name])
    elif wanted.command == "prepare":
        return unless_impossible(prepare)
    elif wanted.command == "status":
        status()
    elif wanted.command == "load":
        for archive in wanted.archives:
            cluster.load(archive.resolve())
    elif wanted.command == "kubectl":
        cluster.running()
        os.execvpe(STATE.programs / "kubectl", ["kubectl", *wanted.rest], cluster.environment())
    elif wanted.command == "run":
        cluster.up([])
        os.execvpe(wanted.rest[0], wanted.rest, cluster.environment())
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


def unless_impossible(run_tests: Callable[[], int]) -> int:
    """Runs tests, or says loudly that they cannot be run here, which is a failure only where they are required."""
    mode = os.environ.get("FORETOKEN_TEST_CLUSTER", "")
    if mode not in ("", "existing", "required"):
        raise cluster.ClusterError(f"FORETOKEN_TEST_CLUSTER is {mode!r}; it can be existing or required")
    absent = [program for program in ("kubectl", "helm") if where.EXISTING and shutil.which(program) is None]
    if absent:
        raise cluster.ClusterError(f"{' and '.join(absent)} must be in the PATH to test an existing cluster")
    try:
        return run_tests()
    except (cluster.MissingError, build.UnreachableError) as error:
        print(f"{error}\nNOT RUN: tests that need Kubernetes (docs/cluster.md)", file=sys.stderr)
        return UNAVAILABLE if mode == "required" else 0


def test(names: list[str], suites: Sequence[str] = SUITES) -> int:
    """Runs tests of the cluster, and ends it if it was started for them, unless somebody may want to see why they fail."""
    is_ours = not where.EXISTING and cluster.node() is None
    if not where.EXISTING:
        cluster.up(names if "helm" in names else ["helm", *names])
        go = machine.go()
        if "on_cluster" in suites and go is not None and not build.test(build.KUBERNETES, go):
            return 1
    suite = unittest.defaultTestLoader.loadTestsFromNames(suites)
    passed = unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful()
    if is_ours and (passed or os.environ.get("CI")):
        cluster.down()
    elif is_ours:
        print(f"the cluster still runs, to be looked at; logs are in {STATE.logs}, `make cluster-down` ends it", file=sys.stderr)
    return 0 if passed else 1


def images(folder: Path) -> None:
    """Makes the images that an existing cluster's nodes need, and says what they are called."""
    if not where.EXECUTABLE:
        raise cluster.ClusterError("FORETOKEN_EXECUTABLE does not say which foretoken to put into the image")
    folder.mkdir(parents=True, exist_ok=True)
    made = service.make(Path(where.EXECUTABLE), folder) | drafts.make(folder)
    pod = shutil.copy(api.built([build.POD])[build.POD.name] / "image.tar", folder / "pod.tar")
    for name, archive in [*((where.image(name), archive) for name, archive in made.items()), (where.pod_image(), pod)]:
        print(f"{archive} is {name}")


def prepare() -> int:
    """Builds whatever tests need, before they begin."""
    if not where.EXISTING:
        api.built([*build.ALWAYS, build.HELM, build.LWS, build.KWOK, build.CERT_MANAGER])
    return 0


def test_telemetry() -> int:
    """Runs the tests of traces and rules; they need no cluster."""
    programs = api.built([build.TELEMETRY])[build.TELEMETRY.name]
    go = machine.go()
    if go is not None and not build.test(build.TELEMETRY, go):
        return 1
    variables = os.environ | {"FORETOKEN_TELEMETRY_PROGRAMS": str(programs)}
    return subprocess.run([sys.executable, str(layout.HERE / "on_collector.py")], env=variables, check=False).returncode


def status() -> None:
    """Prints a table of the programs."""
    for program in cluster.ask({"do": "status"})["programs"]:
        state = f"pid {program['pid']}" if program["pid"] else "not running"
        print(f"{program['name']:<24} {state:<12} {program['memory_bytes'] / 2**20:7.0f} MiB  starts: {program['starts']}")
    print(f"state in {layout.STATE.folder}")
