"""What users of foretoken see on a real cluster, while all goes well and while things fail: part of `make cluster-test`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import subprocess
import tempfile
import time
import unittest
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

import cluster
import drafts
import layout
import service
from on_chart import documented
from on_cluster import EXECUTABLE, EXISTING, KUBECTL, PATIENCE, kubectl
from service import POOL, SHARING
from stream import Stream, complete, said

sys.path.insert(0, str(layout.REPOSITORY / "tests" / "clients"))
import with_server

QUESTION = "Question: Tom has 3 apples and buys 5 more. How many apples does he have?"
BODIES = [{"prompt": QUESTION, "temperature": 0, "max_tokens": 160}]
BODIES += [{"prompt": QUESTION, "temperature": 1, "seed": seed, "max_tokens": 160} for seed in range(8)]
BODIES += [{"messages": [{"role": "user", "content": QUESTION}], "temperature": 0.7, "seed": seed, "max_tokens": 96} for seed in range(3)]
NAMESPACES = (POOL, *SHARING)
# Seconds that nodes take to pass on a Secret, at most.
NODES = 100
# Rights that others ask for, of which no log tells: of whoever makes an owner wait, and of whoever gives rights to others.
BY_ADMISSION = {
    "foretoken.io/specdecodedeployments/finalizers",
    "foretoken.io/speculationendpoints/finalizers",
    "discovery.k8s.io/endpointslices",
}
# Of kinds that a cluster may not have: the operator looks whether it does.
OPTIONAL = "leaderworkerset.x-k8s.io/leaderworkersets"
# Kinds of which the operator makes one for each component, as `kubectl create` wants them.
STRAYS = {
    "ConfigMap": "v1",
    "ServiceAccount": "v1",
    "Service": "v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "Deployment": "apps/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
}


@dataclass
class Row:
    """What a fault did."""

    fault: str
    requests: int
    failed: int
    changed: int
    seconds: float

    def __str__(self) -> str:
        return f"| {self.fault} | {self.requests} | {self.failed} | {self.changed} | {self.seconds:.1f} |"


def pods(namespace: str) -> dict[str, dict]:
    """Pods that nobody has told to go, by name."""
    listed = json.loads(kubectl("get", "pods", f"--namespace={namespace}", "-o", "json"))["items"]
    return {pod["metadata"]["name"]: pod for pod in listed if "deletionTimestamp" not in pod["metadata"]}


def names(namespace: str, component: str, owner: str = "story") -> list[str]:
    """The pods of a component."""
    return [name for name in pods(namespace) if name.startswith(f"{owner}-{component}-")]


def answers(url: str) -> bool:
    """Whether a router gives a token now."""
    try:
        return complete(url, {"prompt": QUESTION, "max_tokens": 1}, timeout=5)["usage"]["completion_tokens"] == 1
    except OSError:
        return False


@contextlib.contextmanager
def api() -> Iterator[str]:
    """The API server without kubectl between, which takes longer to start than some things to happen."""
    with subprocess.Popen([*KUBECTL, "proxy", "--port=0"], stdout=subprocess.PIPE, text=True) as proxy:
        try:
            yield "http://" + proxy.stdout.readline().split()[-1]
        finally:
            proxy.terminate()


def identities(pod: dict) -> set[str]:
    """What tells a pod, and the container in it, from those that they replace."""
    return {pod["metadata"]["uid"], *(one.get("containerID", "") for one in pod["status"].get("containerStatuses", []))}


def served(pod: dict) -> float:
    """Tokens of the prompts that a target has taken since it started; none once it is gone."""
    return metric(pod, "vllm:prompt_tokens_total")


def metric(pod: dict, name: str) -> float:
    """What a pod says of itself by that name, summed over labels; 0 once it is gone."""
    try:
        with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9100/metrics", timeout=1) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, KeyError):
        return 0.0
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def is_ready(pod: dict) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


def status(namespace: str, kind: str = "sdd") -> dict:
    """What the example's deployment in a namespace, or its pool, says of itself."""
    return json.loads(kubectl("get", kind, "story", f"--namespace={namespace}", "-o", "json")).get("status", {})


def condition(status: dict, name: str) -> str:
    found = [one for one in status.get("conditions", []) if one["type"] == name]
    return f"{found[0]['status']} {found[0]['reason']}" if found else ""


def eventually(what: Callable[[], object], pause: float = 0.1, patience: float = PATIENCE) -> None:
    """Waits until something holds."""
    begin = time.monotonic()
    problem = "it is not so"
    while time.monotonic() - begin < patience:
        try:
            if what():
                return
            problem = "it is not so"
        except AssertionError as error:
            problem = str(error)
        time.sleep(pause)
    raise AssertionError(f"not within {patience} s: {problem}")


def whole(wanted: dict[str, int], gone: set[str]) -> bool:
    """Whether as many pods as wanted are ready in each namespace, none of them of those gone, and both deployments say so."""
    for namespace, count in wanted.items():
        present = [pod for pod in pods(namespace).values() if not identities(pod) & gone]
        if len(present) != count or not all(is_ready(pod) for pod in present):
            return False
    return all(is_active(status(namespace)) for namespace in SHARING)


def is_active(status: dict) -> bool:
    active = status.get("speculation", {}).get("state") == "Active"
    return active and condition(status, "Ready") == "True Serving" and condition(status, "Progressing").startswith("False")


@unittest.skipUnless(EXECUTABLE, "FORETOKEN_EXECUTABLE does not say which foretoken to put into the image")
@unittest.skipIf(EXISTING, "an existing cluster is not given images")
class OnService(unittest.TestCase):
    """The chart and examples/shared-endpoint.yaml."""

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as folder:
            service.install(service.make(Path(EXECUTABLE), Path(folder)))
            drafts.load(Path(folder))
        cls.addClassCleanup(cluster.helm, "uninstall", service.RELEASE, f"--namespace={service.NAMESPACE}", "--wait")
        cls.addClassCleanup(kubectl, "delete", "--ignore-not-found", "-f", str(service.EXAMPLE), "--timeout=180s")
        service.apply()
        cls.urls = [service.address(namespace) for namespace in SHARING]
        with with_server.server(EXECUTABLE) as url:
            cls.expected = [said(complete(url, body)) for body in BODIES]
        cls.rows: list[Row] = []

    def stream(self, again: int = 0) -> Stream:
        return Stream(self.urls, BODIES, self.expected, again=again)

    def test_helm_sees_that_the_operator_works(self) -> None:
        told = cluster.helm("test", service.RELEASE, f"--namespace={service.NAMESPACE}", "--logs", "--timeout=120s")
        self.assertIn("foretoken-operator-", told)
        self.assertIn(" works", told)

    def test_both_routers_say_what_one_machine_says(self) -> None:
        eventually(lambda: whole(dict.fromkeys(NAMESPACES, 2) | {POOL: 1}, set()))
        for url in self.urls:
            drafted = 0
            for body, expected in zip(BODIES, self.expected):
                answer = complete(url, body)
                self.assertEqual(said(answer), expected, body)
                drafted += answer["usage"]["foretoken"]["drafted"]
            self.assertGreater(drafted, 0, "the pool drafted nothing")

    def test_other_examples_are_told_what_to_change(self) -> None:
        for example, kind, name, reason in (
            ("laptop", "sdd", "story", "LocalPath"),
            ("ssd", "spe", "story-draft", "LocalPath"),
            ("multi-gpu", "sdd", "qwen3-32b", "ParallelismNotServed"),
            ("multi-gpu", "spe", "qwen3-0b6", "DeviceNotServed"),
        ):
            file = str(layout.REPOSITORY / "examples" / f"{example}.yaml")
            with self.subTest(f"{example} {name}"):
                kubectl("apply", "--server-side", "--namespace=default", "-f", file)
                self.addCleanup(kubectl, "delete", "--ignore-not-found", "--namespace=default", "-f", file)
                path = 'jsonpath={.status.conditions[?(@.type=="Accepted")].reason}'
                eventually(lambda: kubectl("get", kind, name, "--namespace=default", "-o", path) == reason)

    def test_what_an_older_operator_made_and_this_one_does_not_want_is_removed(self) -> None:
        labels = {"app.kubernetes.io/managed-by": "foretoken-operator", "foretoken.io/deployment": "story"}
        pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": layout.POD_IMAGE}]}}
        specs = {
            "Service": {"ports": [{"port": 1}]},
            "NetworkPolicy": {"podSelector": {"matchLabels": {"a": "b"}}},
            "PodDisruptionBudget": {"maxUnavailable": 1, "selector": {"matchLabels": {"a": "b"}}},
            "Deployment": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": pod},
        }
        for kind, version in STRAYS.items():
            metadata = {"name": "story-stray", "namespace": SHARING[0], "labels": labels}
            body = {"apiVersion": version, "kind": kind, "metadata": metadata}
            if kind in specs:
                body["spec"] = specs[kind]
            if kind == "RoleBinding":
                body["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "story-stray"}
            kubectl("create", "-f", "-", stdin=json.dumps(body))
        for kind in STRAYS:
            eventually(lambda: not kubectl("get", kind, "story-stray", f"--namespace={SHARING[0]}", "--ignore-not-found"))

    def test_an_endpoint_that_a_deployment_brings_comes_and_goes_with_its_template(self) -> None:
        example = service.EXAMPLE.read_text().split("---\n")[-1]
        own = "- template: {model: {uri: 'oci://story-draft:dev'}, replicas: 1}"
        text = example.replace("- {name: story, namespace: drafts}", own).replace("name: story\n", "name: own\n")
        kubectl("apply", "--server-side", "-f", "-", stdin=text)
        self.addCleanup(kubectl, "delete", "sdd", "own", f"--namespace={SHARING[1]}", "--wait=true")
        eventually(lambda: kubectl("get", "spe", "own", f"--namespace={SHARING[1]}", "--ignore-not-found"))
        kubectl("apply", "--server-side", "-f", "-", stdin=example.replace("name: story\n", "name: own\n"))
        eventually(lambda: not kubectl("get", "spe", "own", f"--namespace={SHARING[1]}", "--ignore-not-found"))

    def test_whatever_fails_no_request_does_and_no_token_changes(self) -> None:
        wanted = {POOL: 1, SHARING[0]: 2, SHARING[1]: 2}
        eventually(lambda: whole(wanted, set()))
        chat, tales = SHARING

        def delete(namespace: str, component: str) -> set[str]:
            name = names(namespace, component)[0]
            uid = pods(namespace)[name]["metadata"]["uid"]
            kubectl("delete", "pod", name, f"--namespace={namespace}", "--wait=false")
            return {uid}

        def kill_pod(namespace: str, component: str) -> set[str]:
            """As when it has no memory left: the kubelet starts its container again, later each time."""
            pod = pods(namespace)[names(namespace, component)[0]]
            container = pod["status"]["containerStatuses"][0]["containerID"]
            cluster.ctr("tasks", "kill", "--signal=SIGKILL", container.removeprefix("containerd://"))
            return {container}

        def operator() -> set[str]:
            kubectl("delete", "pod", f"--namespace={service.NAMESPACE}", "-l", "app.kubernetes.io/component=operator")
            kubectl("rollout", "status", "deployment/foretoken-operator", f"--namespace={service.NAMESPACE}")
            return set()

        def scale(count: int) -> Callable[[], set[str]]:
            def change() -> set[str]:
                wanted[chat] = 1 + count
                kubectl("scale", "sdd/story", f"--namespace={chat}", f"--replicas={count}")
                return set()

            return change

        def revoke() -> set[str]:
            kubectl("label", "namespace", tales, "drafts-")
            eventually(lambda: condition(status(tales), "EndpointsResolved") == "False NotGranted")
            kubectl("label", "namespace", tales, "drafts=shared")
            return set()

        def pool(slots: int) -> Callable[[], set[str]]:
            def roll() -> set[str]:
                gone = {pod["metadata"]["uid"] for pod in pods(POOL).values()}
                patch = json.dumps({"spec": {"slotsPerReplica": slots}})
                kubectl("patch", "spe", "story", f"--namespace={POOL}", "--type=merge", "--patch", patch)
                return gone

            return roll

        def persist() -> None:
            """Targets draft whether it pays at the moment or not: on a busy machine it may not, and nothing would be compared."""
            gone: set[str] = set()
            for namespace, policy in zip(SHARING, ("ssd", "speculative")):
                spec = json.loads(kubectl("get", "sdd", "story", f"--namespace={namespace}", "-o", "json"))["spec"]
                if spec["speculation"]["policy"].get(policy, {}).get("adaptive", True):
                    gone |= {pods(namespace)[name]["metadata"]["uid"] for name in names(namespace, "target")}
                    patch = json.dumps({"spec": {"speculation": {"policy": {policy: {"adaptive": False}}}}})
                    kubectl("patch", "sdd", "story", f"--namespace={namespace}", "--type=merge", "--patch", patch)
            eventually(lambda: whole(wanted, gone))

        def draft(image: str, reason: str) -> Callable[[], set[str]]:
            """Another draft model, which is tried beside the old one until it is told which is better."""

            def roll() -> set[str]:
                persist()
                old = {pod["metadata"]["uid"] for pod in pods(POOL).values()}
                # As many as a busy machine has within the time.
                rollout = {"canary": {"minVerdicts": 100, "deadlineSeconds": 300}}
                patch = json.dumps({"spec": {"model": {"uri": f"oci://story-draft:{image}"}, "rollout": rollout}})
                kubectl("patch", "spe", "story", f"--namespace={POOL}", "--type=merge", "--patch", patch)
                eventually(lambda: condition(status(POOL, "spe"), "RolledOut") == reason, 0.5, 360)
                told = status(POOL, "spe")["rollout"]["outcome"]
                print(f"{image}: {told['result']}, {told['reason']}: {told['message']}", flush=True)
                return old if told["result"] == "Promoted" else set()

            return roll

        def targets() -> set[str]:
            patch = json.dumps({"spec": {"target": {"template": {"metadata": {"annotations": {"rolled": "once"}}}}}})
            gone = {pods(chat)[name]["metadata"]["uid"] for name in names(chat, "target")}
            kubectl("patch", "sdd", "story", f"--namespace={chat}", "--type=merge", "--patch", patch)
            return gone

        def routers(count: int) -> None:
            patch = json.dumps({"spec": {"router": {"replicas": count}}})
            kubectl("patch", "sdd", "story", f"--namespace={chat}", "--type=merge", "--patch", patch)
            # Beside the one target.
            wanted[chat] = 1 + count
            eventually(lambda: whole(wanted, set()))

        def kill_router() -> set[str]:
            routers(2)
            return kill_pod(chat, "router")

        def upgrade() -> set[str]:
            gone = {pod["metadata"]["uid"] for namespace in NAMESPACES for pod in pods(namespace).values()}
            service.upgrade("another")
            return gone

        def certified() -> dict[str, str]:
            """The certificates that pods are given, by namespace and Secret."""
            found: dict[str, str] = {}
            for namespace in NAMESPACES:
                for secret in json.loads(kubectl("get", "secrets", f"--namespace={namespace}", "-o", "json"))["items"]:
                    if secret["metadata"]["name"].endswith("-tls"):
                        found[f"{namespace}/{secret['metadata']['name']}"] = secret["data"]["tls.crt"]
            return found

        def issued_anew(change: Callable[[], object]) -> set[str]:
            """Whether all pods have other certificates after a change, once nodes have passed them on and new connections are made."""
            before = certified()
            change()
            operator()
            eventually(lambda: all(after != before[name] for name, after in certified().items()))
            time.sleep(NODES)
            gone = delete(POOL, "draft")
            # Connections that are up say nothing of new certificates.
            new = lambda: [pod for pod in pods(POOL).values() if not identities(pod) & gone]
            eventually(lambda: sum(metric(pod, "foretoken_links{") for pod in new()) == len(SHARING))
            return gone

        def succeed() -> set[str]:
            """A successor of the authority that is asked for, and signs as if a day had passed."""
            ca = ("secret", "foretoken-ca", f"--namespace={service.NAMESPACE}")
            kubectl("annotate", *ca, "foretoken.io/succeed=now")
            operator()
            read = lambda: json.loads(kubectl("get", *ca, "-o", "json"))["data"]
            eventually(lambda: sum(name.endswith(".key") for name in read()) == 2)
            time.sleep(NODES)

            def age() -> None:
                data = read()
                made = sorted(int(name.removesuffix(".key")) for name in data if name.endswith(".key"))
                older: dict[str, str | None] = {f"{one}.{end}": None for one in made for end in ("crt", "key")}
                for one, hours in zip(made, (50, 25)):
                    older |= {f"{one - 3600 * hours}.{end}": data[f"{one}.{end}"] for end in ("crt", "key")}
                kubectl("patch", *ca, "--type=merge", "--patch", json.dumps({"data": older}))

            return issued_anew(age)

        def replace() -> set[str]:
            ca = ("secret", "foretoken-ca", f"--namespace={service.NAMESPACE}")
            return issued_anew(lambda: kubectl("delete", *ca))

        def kill(program: str) -> Callable[[], set[str]]:
            def end() -> set[str]:
                cluster.ask({"do": "kill", "program": program})
                return set()

            return end

        faults: dict[str, Callable[[], set[str]]] = {
            "endpoint pod killed": lambda: kill_pod(POOL, "draft"),
            "endpoint pod deleted": lambda: delete(POOL, "draft"),
            "pool rolled": pool(32),
            "pool to a worse draft and back": draft("worse", "False RolledBack"),
            "pool to an equal draft": draft("equal", "True Promoted"),
            "targets rolled": targets,
            "the only target pod deleted": lambda: delete(chat, "target"),
            "targets 1 to 3": scale(3),
            "one target pod of 3 killed": lambda: kill_pod(chat, "target"),
            "targets 3 to 1": scale(1),
            "router pod deleted": lambda: delete(tales, "router"),
            "one of two router pods killed": kill_router,
            "routers 2 to 1": lambda: routers(1) or set(),
            "operator pod deleted": operator,
            "operator upgraded with all pods": upgrade,
            "grant revoked and given again": revoke,
            "API server killed": kill("kube-apiserver"),
            "etcd killed": kill("etcd"),
        }
        # Minutes each, since nodes pass Secrets on slowly: for whoever asks for them.
        slow = {"authority succeeded": succeed, "authority deleted": replace}
        only = os.environ.get("FORETOKEN_TEST_FAULTS", "")
        for fault, cause in (faults | slow).items():
            if fault not in (only.split(",") if only else faults):
                continue
            with self.subTest(fault):
                self.suffer(fault, cause, wanted)
        print("\n| fault | requests | failed | changed | seconds to Active again |\n| --- | --- | --- | --- | --- |")
        print("\n".join(map(str, self.rows)), flush=True)

    def suffer(self, fault: str, cause: Callable[[], set[str]], wanted: dict[str, int]) -> None:
        """Has something fail in the middle of requests, until all is as it was and some more have been answered."""
        # Connections to a router that is killed break; whoever uses a client library does not see it.
        again = 2 if "router pods killed" in fault else 0
        with self.stream(again) as stream:
            stream.more(8)
            begin = time.monotonic()
            gone = cause()
            eventually(lambda: whole(wanted, gone))
            seconds = time.monotonic() - begin
            stream.more(12)
        fault += f" ({stream.broken} broken connections)" if stream.broken else ""
        self.rows.append(Row(fault, stream.done + len(stream.failures), len(stream.failures), len(stream.changes), seconds))
        self.assertEqual(stream.failures, [])
        self.assertEqual(stream.changes, [])
        self.assertGreater(stream.drafted, 0)

    def test_routers_follow_what_becomes_ready_and_what_goes(self) -> None:
        eventually(lambda: whole({POOL: 1, SHARING[0]: 2, SHARING[1]: 2}, set()))
        chat = SHARING[0]
        example = next(text for text in service.EXAMPLE.read_text().split("---\n") if f"namespace: {chat}\nspec:" in text)
        self.addCleanup(kubectl, "delete", "sdd", "fresh", f"--namespace={chat}", "--wait=true")
        begin = time.monotonic()
        kubectl("apply", "--server-side", "-f", "-", stdin=example.replace("name: story\n", "name: fresh\n", 1))
        path = ("-o", "jsonpath={.spec.clusterIP}", "--ignore-not-found")
        eventually(lambda: kubectl("get", "service", "fresh-router", f"--namespace={chat}", *path))
        url = f"http://{kubectl('get', 'service', 'fresh-router', f'--namespace={chat}', *path)}:8000"
        eventually(lambda: answers(url))
        taken = {"apply to first token": time.monotonic() - begin}

        # Prompts of their own, so that none is drawn to where another one was.
        bodies = [{"prompt": f"{number} birds sat on a tree.", "max_tokens": 4} for number in range(1000)]
        with Stream([url], bodies, [], each=8) as stream:
            stream.more(20)
            kubectl("scale", "sdd/fresh", f"--namespace={chat}", "--replicas=2")
            # Of two pods the one that is not ready yet.
            eventually(lambda: len(names(chat, "target", "fresh")) == 2)
            new = next(name for name in names(chat, "target", "fresh") if not is_ready(pods(chat)[name]))
            with api() as server:
                ask = lambda: json.load(urllib.request.urlopen(f"{server}/api/v1/namespaces/{chat}/pods/{new}", timeout=5))
                eventually(lambda: is_ready(ask()), 0.01)
            begin = time.monotonic()
            pod = pods(chat)[new]
            eventually(lambda: served(pod) > 0, 0.01)
            taken["pod Ready to first request"] = time.monotonic() - begin

            begin = last = time.monotonic()
            kubectl("delete", "pod", new, f"--namespace={chat}", "--wait=false")
            count = served(pod)
            # It listens on for five seconds, and for as long as it drains.
            while time.monotonic() - begin < 5:
                now = served(pod)
                if now > count:
                    count, last = now, time.monotonic()
                time.sleep(0.01)
            taken["pod deleted to last new request"] = last - begin
        self.assertEqual(stream.failures, [])
        print("\n| what | seconds |\n| --- | --- |\n" + "\n".join(f"| {what} | {seconds:.2f} |" for what, seconds in taken.items()))

    def test_the_operator_uses_all_of_its_rights_and_no_others(self) -> None:
        used: dict[str, set[str]] = {}
        forbidden: dict[str, set[str]] = {}
        account = f"system:serviceaccount:{service.NAMESPACE}:foretoken-operator"
        for line in layout.STATE.audit.read_text().splitlines():
            event = json.loads(line)
            asked = event.get("objectRef", {})
            if event["user"]["username"] != account or "resource" not in asked:
                continue
            decision = event.get("annotations", {}).get("authorization.k8s.io/decision")
            resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            verbs = (used if decision == "allow" else forbidden).setdefault(f"{asked.get('apiGroup', '')}/{resource}", set())
            verbs.add(event["verb"])
            if event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201:
                # What is applied and was not there is also created, and has to be allowed to be.
                verbs.add("create")
        given = {resource: verbs for resource, verbs in documented().items() if resource not in BY_ADMISSION}
        self.assertLessEqual(used.pop(OPTIONAL, set()), given.pop(OPTIONAL))
        self.assertEqual(used, given)
        # An API server that has just begun forbids a while what it allows as soon as it knows everybody's rights.
        never = {resource: verbs - used.get(resource, set()) for resource, verbs in forbidden.items()}
        self.assertEqual({resource: verbs for resource, verbs in never.items() if verbs}, {})


def load_tests(loader: unittest.TestLoader, _: object, __: object) -> unittest.TestSuite:
    """In the order in which they are written: the last one looks back on all."""
    found = loader.getTestCaseNames(OnService)
    line = lambda name: getattr(OnService, name).__code__.co_firstlineno
    return unittest.TestSuite(OnService(name) for name in sorted(found, key=line))


if __name__ == "__main__":
    unittest.main()
