"""How the operator fares with many deployments, on a real API server with simulated nodes.

    python3 tests/cluster/scale.py --operator target/release/foretoken --counts 10,100,1000 --output bench/results/scale.json

For each count there are etcd, the API server, the controllers, the scheduler and kwok of its own, on free ports of the
loopback: no root, no containers, and nothing is left. Pods are scheduled to nodes that are only said to be, and are
only said to run. What the operator asks and writes is counted from the API server's audit log.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import api
import build
import node
from layout import State
from programs import Program

OPERATOR = "foretoken-operator"
KINDS = "/apis/foretoken.io/v1alpha1/specdecodedeployments"
NAMESPACES = 10
# Pods of one simulated node.
PODS = 500
# How long one count may take.
PATIENCE = 900.0
# Nobody writes for so long: it is done.
SILENCE = 10.0
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "omitManagedFields": True}],
}
FOLDER = "FORETOKEN_SCALE_FOLDER"


def main() -> int:
    """Measures each count, and writes all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", type=Path, required=True, help="the executable `foretoken`")
    parser.add_argument("--build", default="", help="how it was built, for the record")
    parser.add_argument("--counts", default="10,100,1000")
    parser.add_argument("--window", type=float, default=60.0, help="seconds of steady state that are looked at")
    parser.add_argument("--output", type=Path, help="where the results go, as JSON")
    parser.add_argument("--keep", type=Path, help="an existing folder that logs of the operator and of requests go to")
    parser.add_argument("--wrap", default="", help="a command that the operator is started by, such as a profiler")
    wanted = parser.parse_args()
    if FOLDER in os.environ:
        return inside(wanted, Path(os.environ[FOLDER]), int(wanted.counts))
    results = []
    for count in wanted.counts.split(","):
        with tempfile.TemporaryDirectory(prefix="foretoken-scale-") as folder:
            result = Path(folder) / "result.json"
            outcome = run(wanted, Path(folder), count)
            for log in ("operator.log", "audit.log") if wanted.keep else ():
                shutil.copy(Path(folder) / log, wanted.keep / f"{count}-{log}")
            if outcome != 0:
                return outcome
            results.append(json.loads(result.read_text()))
    told = {"machine": machine(), "build": wanted.build, "results": results}
    if wanted.output:
        wanted.output.write_text(json.dumps(told, indent=2) + "\n")
    print(table(results))
    return 0


def machine() -> dict[str, object]:
    """What it was measured on."""
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = next(line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    load = os.getloadavg()[0]
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count(), "memory_gib": round(int(memory) / 2**20, 1), "load_after": round(load, 1)}


def run(wanted: argparse.Namespace, folder: Path, count: str) -> int:
    """A control plane, and this program again as what it lives for."""
    state = State(folder / "state")
    server = api.prepare(state, api.built([build.KUBERNETES, build.KWOK]))
    policy = folder / "audit-policy.json"
    policy.write_text(json.dumps(AUDIT))
    first = server.children["kube-apiserver"]
    port = next(argument.partition("=")[2] for argument in first.program.arguments if argument.startswith("--secure-port="))
    noted = [f"--audit-policy-file={policy}", f"--audit-log-path={folder}/audit.log", "--audit-log-maxsize=10000", "--audit-log-mode=batch"]
    first.program = dataclasses.replace(first.program, arguments=[*first.program.arguments, *noted])
    ready = f"https://127.0.0.1:{port}/readyz"
    stages = folder / "stages.yaml"
    stages.write_text(published_stages())
    for program in simulated(state, ready, stages):
        server.children[program.name] = node.Child(program)
    os.environ[FOLDER] = str(folder)
    words = [f"--operator={wanted.operator.resolve()}", f"--counts={count}", f"--window={wanted.window}", f"--wrap={wanted.wrap}"]
    try:
        return api.supervise(server, [sys.executable, __file__, *words], state)
    finally:
        del os.environ[FOLDER]
        server.stop(grace=0)


def published_stages() -> str:
    """How nodes and pods come to be what they are said to be, as kwok's own chart has it."""
    folder = build.place(build.KWOK) / "charts/stage-fast/templates"
    texts = [(folder / f"{name}.yaml").read_text() for name in ("node-initialize", "pod-ready", "pod-delete")]
    # In a chart, templates of kwok's own are quoted.
    return "\n---\n".join(re.sub(r"\{\{ `(.*?)` \}\}", r"\1", text) for text in texts)


def simulated(state: State, ready: str, stages: Path) -> list[Program]:
    """Who makes pods of Deployments, gives them nodes, and says that they run."""
    quick = ["--kube-api-qps=500", "--kube-api-burst=1000"]
    config = f"--kubeconfig={state.kubeconfig}"
    return [
        Program(
            "kube-controller-manager",
            [
                config,
                *quick,
                "--leader-elect=false",
                "--secure-port=0",
                f"--service-account-private-key-file={state.credentials}/service-accounts.key",
                "--controllers=deployment-controller,replicaset-controller,garbage-collector-controller,serviceaccount-controller",
            ],
            after=ready,
        ),
        Program("kube-scheduler", [config, *quick, "--leader-elect=false", "--secure-port=0"], after=ready),
        Program("kwok", [config, f"--config={stages}", "--manage-all-nodes=true", "--node-lease-duration-seconds=0"], after=ready),
    ]


# What follows is done where KUBECONFIG is that control plane.


def inside(wanted: argparse.Namespace, folder: Path, count: int) -> int:
    """Measures one count."""
    log = folder / "audit.log"
    kubectl("apply", "--server-side", "-f", "-", text=subprocess.run([wanted.operator, "crd"], check=True, capture_output=True, text=True).stdout)
    until(lambda: subprocess.run(["kubectl", "get", "sdd,spe,acceleratorprofiles", "-A"], capture_output=True).returncode == 0, "the kinds")
    kubectl("create", "-f", "-", text=listed(surroundings(count)))
    # Nobody looks after nodes here who would take it away.
    kubectl("taint", "nodes", "--all", "node.kubernetes.io/not-ready:NoSchedule-")
    operator = start(wanted.operator, folder, wanted.wrap)
    time.sleep(3)
    result: dict[str, object] = {"deployments": count}
    began = time.monotonic()
    create(folder, deployments(count))
    result["created_seconds"] = passed(began)
    until(lambda: amount("/apis/apps/v1/deployments") >= 2 * count + 1, "all applied")
    result["applied_seconds"] = passed(began)
    until(lambda: ready() >= count, "all ready", pause=2)
    result["ready_seconds"] = passed(began)
    print(f"{count} deployments: {json.dumps(result)}", file=sys.stderr, flush=True)
    settle(log)
    reads, writes = asked(log)
    result |= {"requests": reads + writes, "writes": writes, "cpu_seconds": cpu(operator.pid), **memory(operator)}
    result |= {"asked": kinds_asked(log), "cpu_seconds_of_others": others()}
    before, busy = asked(log), cpu(operator.pid)
    time.sleep(wanted.window)
    after = asked(log)
    result["steady"] = {
        "seconds": wanted.window,
        "writes": after[1] - before[1],
        "requests": sum(after) - sum(before),
        "cpu_seconds": round(cpu(operator.pid) - busy, 2),
    }
    result["rss_mb"] = memory(operator)["rss_mb"]
    operator.terminate()
    operator.wait()
    before = asked(log)
    operator = start(wanted.operator, folder, wanted.wrap)
    time.sleep(20 + count / 50)
    after = asked(log)
    result["restart"] = {"writes": after[1] - before[1], "requests": sum(after) - sum(before), "cpu_seconds": cpu(operator.pid), **memory(operator)}
    operator.terminate()
    operator.wait()
    (folder / "result.json").write_text(json.dumps(result))
    print(json.dumps(result))
    return 0


def kubectl(*words: str, text: str = "") -> str:
    """What kubectl answers."""
    return subprocess.run(["kubectl", *words], input=text, check=True, capture_output=True, text=True).stdout


def listed(objects: list[dict[str, object]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def surroundings(count: int) -> list[dict[str, object]]:
    """Nodes, namespaces, and the pool of drafts that all share."""
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"simulated-{n}", "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": {"kubernetes.io/hostname": f"simulated-{n}"}},
            "status": {what: {"cpu": "640", "memory": "2560Gi", "pods": str(PODS)} for what in ("allocatable", "capacity")},
        }
        for n in range(2 * count // PODS + 2)
    ]
    names = ["drafts", *(f"team-{n}" for n in range(NAMESPACES))]
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]
    pool = {
        "apiVersion": "foretoken.io/v1alpha1",
        "kind": "SpeculationEndpoint",
        "metadata": {"name": "tiny", "namespace": "drafts"},
        "spec": {"model": {"uri": "oci://story-draft:dev"}, "replicas": 1, "allowedNamespaces": {"from": "All"}},
    }
    return [*nodes, *spaces, pool]


def deployments(count: int) -> list[dict[str, object]]:
    speculation = {"policy": {"type": "SSD"}, "endpoints": [{"name": "tiny", "namespace": "drafts"}]}
    return [
        {
            "apiVersion": "foretoken.io/v1alpha1",
            "kind": "SpecDecodeDeployment",
            "metadata": {"name": f"story-{n}", "namespace": f"team-{n % NAMESPACES}"},
            "spec": {"model": {"uri": "oci://story-target:dev"}, "target": {"replicas": 1}, "speculation": speculation},
        }
        for n in range(count)
    ]


def create(folder: Path, objects: list[dict[str, object]]) -> None:
    """Makes them, by as many users as there are processes of kubectl."""
    users = min(4, len(objects))
    running = []
    for user in range(users):
        path = folder / f"objects-{user}.json"
        path.write_text(listed(objects[user::users]))
        running.append(subprocess.Popen(["kubectl", "create", "-f", str(path)], stdout=subprocess.DEVNULL))
    if any(process.wait() for process in running):
        raise RuntimeError("objects were not made")


def start(operator: Path, folder: Path, wrap: str = "") -> subprocess.Popen[bytes]:
    log = open(folder / "operator.log", "ab")
    command = [*shlex.split(wrap), operator, "operator", "--image=foretoken:1", "--alone"]
    return subprocess.Popen(command, stdout=log, stderr=log)


def amount(path: str) -> int:
    """How many objects there are."""
    found = json.loads(kubectl("get", "--raw", f"{path}?limit=1"))
    return len(found["items"]) + found["metadata"].get("remainingItemCount", 0)


def ready() -> int:
    """How many deployments are ready."""
    found = json.loads(kubectl("get", "--raw", KINDS))
    conditions = (one.get("status", {}).get("conditions", []) for one in found["items"])
    return sum(any(c["type"] == "Ready" and c["status"] == "True" for c in own) for own in conditions)


def asked(log: Path) -> tuple[int, int]:
    """What the operator has read and written so far."""
    reads = writes = 0
    with log.open() as lines:
        for line in lines:
            if OPERATOR not in line:
                continue
            event = json.loads(line)
            if event.get("userAgent") == OPERATOR:
                is_read = event["verb"] in ("get", "list", "watch")
                reads, writes = reads + is_read, writes + (not is_read)
    return reads, writes


def settle(log: Path) -> None:
    """Waits until the operator has written nothing for a while."""
    give_up = time.monotonic() + PATIENCE
    before = -1
    while (now := asked(log)[1]) != before:
        if time.monotonic() > give_up:
            raise RuntimeError("no end of writes")
        before = now
        time.sleep(SILENCE)


def kinds_asked(log: Path) -> dict[str, int]:
    """How often the operator has asked what, most often first."""
    counts: collections.Counter[str] = collections.Counter()
    with log.open() as lines:
        for line in lines:
            event = json.loads(line) if OPERATOR in line else {}
            if event.get("userAgent") == OPERATOR:
                about = event.get("objectRef", {})
                counts["/".join(filter(None, (f"{event['verb']} {about.get('resource')}", about.get("subresource"))))] += 1
    return dict(counts.most_common())


def others() -> dict[str, float]:
    """Seconds of processor time that the programs of the control plane have used."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        if int(rest.split()[1]) == os.getppid() and int(folder.name) != os.getpid():
            found[name.partition("(")[2]] = cpu(int(folder.name))
    return found


def cpu(process: int) -> float:
    """Seconds of processor time it has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)


def memory(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Resident megabytes, now and at most."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if ":" in line)
    return {name: round(int(lines[field].split()[0]) / 1000, 1) for name, field in (("rss_mb", "VmRSS"), ("peak_mb", "VmHWM"))}


def passed(began: float) -> float:
    return round(time.monotonic() - began, 1)


def until(so: object, what: str, pause: float = 0.5) -> None:
    give_up = time.monotonic() + PATIENCE
    while True:
        problem = "it is not so"
        try:
            if so():
                return
        # A server that is busy may refuse now and then.
        except subprocess.CalledProcessError as error:
            problem = f"{error} {error.stderr or ''}"
        if time.monotonic() > give_up:
            raise RuntimeError(f"waited in vain for: {what}: {problem}")
        time.sleep(pause)


def table(results: list[dict]) -> str:
    """The same for people."""
    head = "| deployments | created | applied | Ready | writes | requests | CPU | memory (most) | writes in {0:.0f} s of steady state | writes after a restart |"
    lines = [head.format(results[0]["steady"]["seconds"]), "| " + "--- | " * 10]
    for one in results:
        cells = [
            one["deployments"],
            *(f"{one[name + '_seconds']} s" for name in ("created", "applied", "ready")),
            one["writes"],
            one["requests"],
            f"{one['cpu_seconds']} s",
            f"{one['rss_mb']} MB ({one['peak_mb']})",
            one["steady"]["writes"],
            one["restart"]["writes"],
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
