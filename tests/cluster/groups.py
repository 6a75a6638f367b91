"""Sees that a target that spans pods becomes groups, with the real controller of LeaderWorkerSets, without root.

    python3 tests/cluster/groups.py --operator target/debug/foretoken

Nodes and pods are only said to be, by kwok, so nothing serves: on_groups.py sees that on a real cluster. Everything
else is real: etcd, the API server, the controllers, the scheduler, the webhooks of LeaderWorkerSets, the operator.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import api
import build
import layout
import node
import scale
from command_line import unless_impossible
from layout import State
from scale import kubectl

FOLDER = "FORETOKEN_GROUPS_FOLDER"
EXAMPLE = layout.REPOSITORY / "examples" / "group.yaml"
PLACE = "--namespace=groups"
DEFINITIONS = "charts/lws/crds"


def main() -> int:
    """What the user wants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", type=Path, required=True, help="the executable foretoken")
    wanted = parser.parse_args()
    if FOLDER in os.environ:
        return inside(wanted.operator, Path(os.environ[FOLDER]))
    return unless_impossible(lambda: run(wanted.operator.resolve()))


def run(operator: Path) -> int:
    """A control plane, and this program again as what it lives for."""
    with tempfile.TemporaryDirectory(prefix="foretoken-groups-") as name:
        folder = Path(name)
        state = State(folder / "state")
        server = api.prepare(state, api.built([build.KUBERNETES, build.KWOK, build.LWS]))
        arguments = server.children["kube-apiserver"].program.arguments
        port = next(argument.partition("=")[2] for argument in arguments if argument.startswith("--secure-port="))
        ready = f"https://127.0.0.1:{port}/readyz"
        stages = folder / "stages.yaml"
        stages.write_text(scale.published_stages())
        for program in scale.simulated(state, ready, stages):
            if program.name == "kube-controller-manager":
                kept = [one.replace("--controllers=", "--controllers=statefulset-controller,") for one in program.arguments]
                program = dataclasses.replace(program, arguments=kept)
            server.children[program.name] = node.Child(program)
        os.environ[FOLDER] = str(folder)
        try:
            return api.supervise(server, [sys.executable, __file__, f"--operator={operator}"], state)
        finally:
            del os.environ[FOLDER]
            server.stop(grace=0)


def inside(operator: Path, folder: Path) -> int:
    """What is seen, where KUBECONFIG is that control plane."""
    crd = subprocess.run([operator, "crd"], check=True, capture_output=True, text=True).stdout
    kubectl("apply", "--server-side", "-f", "-", text=crd)
    kubectl("create", "-f", "-", text=scale.listed(scale.surroundings(1)))
    kubectl("taint", "nodes", "--all", "node.kubernetes.io/not-ready:NoSchedule-")
    scale.until(lambda: works("get", "sdd,spe,acceleratorprofiles", "-A"), "the kinds")
    running = [scale.start(operator, folder)]
    try:
        see(folder, running)
    except BaseException:
        for name in ("operator.log", "sets.log"):
            print("".join((folder / name).read_text().splitlines(keepends=True)[-20:]) if (folder / name).exists() else "", file=sys.stderr)
        print(kubectl("get", "sdd,leaderworkersets,statefulsets,pods", "-A", "-o", "wide"), file=sys.stderr)
        raise
    finally:
        for process in running:
            process.terminate()
            process.wait()
    return 0


def see(folder: Path, running: list[subprocess.Popen[bytes]]) -> None:
    """Each step, with what it takes."""
    kubectl("apply", "--server-side", "-f", str(EXAMPLE))
    told("it is said what to install", lambda: condition("Accepted") == "False LeaderWorkerSetMissing")
    running.append(install(folder))
    told("the set is made", lambda: condition("Accepted") == "True Simulated")
    told("its group is ready, and the deployment with it", lambda: status().get("targets") == "1/1" and len(members()) == 2)
    pods = {name: pod["spec"] for name, pod in members().items()}
    assert sorted(pods) == ["pretended-group-0", "pretended-group-0-1"], pods
    assert all(spec.get("nodeName") for spec in pods.values()), pods
    for rank, (name, spec) in enumerate(sorted(pods.items())):
        variables = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
        assert variables["LWS_WORKER_INDEX"] == str(rank), (name, variables)
        assert variables["LWS_LEADER_ADDRESS"] == "pretended-group-0.pretended-group.groups", (name, variables)
    before = identities()
    # That of a worker does too; but here pods are gone so soon that the controller may not see them go.
    kubectl("delete", "pod", "pretended-group-0", PLACE, "--wait=false")
    told("a lost leader takes its group along, and another comes", lambda: settled(1) and not identities() & before)
    kubectl("scale", "sdd/pretended", PLACE, "--replicas=3")
    told("three groups", lambda: settled(3))
    before = identities()
    note = {"spec": {"target": {"template": {"metadata": {"annotations": {"note": "rolled"}}}}}}
    kubectl("patch", "sdd", "pretended", PLACE, "--type=merge", "-p", json.dumps(note))
    told("all three rolled", lambda: settled(3) and not identities() & before)
    kubectl("delete", "sdd", "pretended", PLACE)
    told("all of it goes with its deployment", lambda: not members() and not kubectl("get", "leaderworkersets", PLACE, "-o", "name"))


def install(folder: Path) -> subprocess.Popen[bytes]:
    """The controller, with certificates for this machine: here no Service leads to its webhooks."""
    published = build.place(build.LWS)
    kubectl("apply", "--server-side", "-f", str(published / DEFINITIONS))
    certificates = folder / "webhooks"
    certificates.mkdir()
    (port, probe, metrics) = api.free_ports(3)
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=webhooks"]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{certificates}/tls.key", "-out", f"{certificates}/tls.crt"]
    subprocess.run([*words, *files], check=True, capture_output=True)
    bundle = base64.b64encode((certificates / "tls.crt").read_bytes()).decode()
    config = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "webhook": {"port": port, "host": "127.0.0.1", "certDir": str(certificates)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probe}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
    }
    file = folder / "sets.json"
    file.write_text(json.dumps(config))
    log = open(folder / "sets.log", "ab")
    process = subprocess.Popen([published / "manager", f"--config={file}"], stdout=log, stderr=log)
    scale.until(lambda: "Serving webhook server" in (folder / "sets.log").read_text(), "webhooks")
    kubectl("apply", "--server-side", "-f", "-", text=scale.listed([hooks(kind, bundle, port) for kind in ("Mutating", "Validating")]))
    return process


def hooks(kind: str, bundle: str, port: int) -> dict[str, object]:
    """What the API server asks the controller, as its chart has it."""
    verb = "mutate" if kind == "Mutating" else "validate"
    asked = [
        ("leaderworkerset.x-k8s.io", "leaderworkersets", ["CREATE", "UPDATE"], "-leaderworkerset-x-k8s-io-v1-leaderworkerset"),
        ("", "pods", ["CREATE"] if kind == "Mutating" else ["CREATE", "UPDATE"], "--v1-pod"),
    ]
    webhooks = [
        {
            "name": f"{verb}.{resource}.kb.io",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"url": f"https://127.0.0.1:{port}/{verb}{path}", "caBundle": bundle},
            "rules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": operations, "resources": [resource]}],
            # Pods of others are none of its business.
            **({"objectSelector": {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}} if resource == "pods" else {}),
        }
        for group, resource, operations, path in asked
    ]
    metadata = {"name": f"{verb}-sets"}
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration", "metadata": metadata, "webhooks": webhooks}


def works(*words: str) -> bool:
    return subprocess.run(["kubectl", *words], capture_output=True, check=False).returncode == 0


def told(what: str, so: object) -> None:
    """Waits until something holds, and says so."""
    began = time.monotonic()
    scale.until(so, what)
    print(f"{scale.passed(began):5.1f} s  {what}", flush=True)


def status() -> dict:
    return json.loads(kubectl("get", "sdd", "pretended", PLACE, "-o", "json")).get("status", {})


def condition(name: str) -> str:
    found = [one for one in status().get("conditions", []) if one["type"] == name]
    return f"{found[0]['status']} {found[0]['reason']}" if found else ""


def members() -> dict[str, dict]:
    """The pods of groups that are there to stay, by name."""
    listed = json.loads(kubectl("get", "pods", PLACE, "-l", "leaderworkerset.sigs.k8s.io/name", "-o", "json"))["items"]
    return {pod["metadata"]["name"]: pod for pod in listed if "deletionTimestamp" not in pod["metadata"]}


def identities() -> set[str]:
    return {pod["metadata"]["uid"] for pod in members().values()}


def settled(groups: int) -> bool:
    """Whether so many groups of two are there and ready, and no more."""
    return status().get("targets") == f"{groups}/{groups}" and len(members()) == 2 * groups


if __name__ == "__main__":
    sys.exit(main())
