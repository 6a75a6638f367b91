"""What users of foretoken see on a real cluster, while all goes well and while things fail: part of `make cluster-test`."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
import unittest
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import cluster
import drafts
import layout
import service
import where
from faults import OURS, Faults
from observed import QUESTION, answers, eventually, is_ready, names, pods, served, status, whole
from service import POOL, SHARING
from stream import Stream, complete, drafted, said
from where import EXECUTABLE, EXISTING, PATIENCE, kubectl

sys.path.insert(0, str(layout.REPOSITORY / "tests" / "clients"))
import with_server

BODIES = [{"prompt": QUESTION, "temperature": 0, "max_tokens": 160}]
BODIES += [{"prompt": QUESTION, "temperature": 1, "seed": seed, "max_tokens": 160} for seed in range(8)]
BODIES += [{"prompt": QUESTION, "temperature": 1, "seed": seed, "max_tokens": 160, "stream": True} for seed in range(8, 12)]
BODIES += [{"messages": [{"role": "user", "content": QUESTION}], "temperature": 0.7, "seed": seed, "max_tokens": 96} for seed in range(3)]
BODIES += [{"messages": [{"role": "user", "content": QUESTION}], "temperature": 0.7, "seed": 3, "max_tokens": 96, "stream": True}]
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


def spoken(url: str) -> list[tuple]:
    """What is to be said: what one machine says, or, as processors differ in the last bits, what a target says by itself."""
    if EXISTING:
        return [said(complete(url, {**body, "foretoken": {"policy": "Autoregressive"}})) for body in BODIES]
    with with_server.server(EXECUTABLE) as one_machine:
        return [said(complete(one_machine, body)) for body in BODIES]


@unittest.skipUnless(EXECUTABLE, "FORETOKEN_EXECUTABLE does not say which foretoken to put into the image")
class OnService(unittest.TestCase):
    """The chart and examples/shared-endpoint.yaml."""

    @classmethod
    def setUpClass(cls) -> None:
        service.claim(cls)
        # The pool is in use when the operator goes, and goes all the same.
        cls.addClassCleanup(kubectl, "delete", "--ignore-not-found", "-f", str(service.EXAMPLE), "--timeout=180s")
        service.installed_for(cls)
        if not EXISTING:
            with tempfile.TemporaryDirectory() as folder:
                for archive in drafts.make(Path(folder)).values():
                    cluster.load(archive)
        service.apply()
        cls.urls = [where.router(namespace) for namespace in SHARING]
        cls.expected = spoken(cls.urls[0])
        cls.rows: list[Row] = []

    def stream(self, again: int = 0) -> Stream:
        return Stream(self.urls, BODIES, self.expected, again=again)

    def test_helm_sees_that_the_operator_works(self) -> None:
        told = where.helm("test", service.RELEASE, f"--namespace={service.NAMESPACE}", "--logs", "--timeout=120s")
        self.assertIn("foretoken-operator-", told)
        self.assertIn(" works", told)

    def test_both_routers_say_what_one_machine_says(self) -> None:
        eventually(lambda: whole(Faults().wanted, set()))
        for url in self.urls:
            for body, expected in zip(BODIES, self.expected):
                self.assertEqual(said(complete(url, body)), expected, body)
            eventually(lambda: drafted(url, BODIES[0]) > 0)
        for namespace in SHARING:
            targets = [pods(namespace)[name] for name in names(namespace, "target")]
            revisions = [pod["metadata"]["labels"]["foretoken.io/revision"] for pod in targets]
            self.assertEqual([status(namespace)["revision"]], revisions)

    @unittest.skipIf(EXISTING, "an existing cluster may not enforce policies")
    def test_strangers_do_not_reach_a_pool_and_those_who_share_it_do(self) -> None:
        draft = pods(POOL)[names(POOL, "draft")[0]]["status"]["podIP"]
        stranger = f"foretoken-test-{secrets.token_hex(4)}"
        kubectl("create", "namespace", stranger)
        self.addCleanup(kubectl, "delete", "namespace", stranger, "--wait=false")
        labels = "--labels=app.kubernetes.io/managed-by=foretoken-operator,app.kubernetes.io/component=target"
        kubectl(f"--namespace={stranger}", "run", "asker", f"--image={where.pod_image()}", "--image-pull-policy=Never", labels, "--", "pause")
        kubectl(f"--namespace={stranger}", "wait", "pod/asker", "--for=condition=Ready", f"--timeout={PATIENCE}s")

        def told() -> str:
            with self.assertRaises(AssertionError) as caught:
                kubectl(f"--namespace={stranger}", "exec", "asker", "--", "/pod", "get", f"http://{draft}:7100")
            return str(caught.exception)

        self.assertIn("deadline exceeded", told())
        # Whoever is granted is let in, and then asked for a certificate, which this one has not.
        kubectl("label", "namespace", stranger, "drafts=shared")
        eventually(lambda: "deadline exceeded" not in told())

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
        pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": where.pod_image()}]}}
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
        example = service.example().split("---\n")[-1]
        own = where.there("- template: {model: {uri: 'oci://story-draft:dev'}, replicas: 1}")
        text = example.replace("- {name: story, namespace: drafts}", own).replace("name: story\n", "name: own\n")
        kubectl("apply", "--server-side", "-f", "-", stdin=text)
        self.addCleanup(kubectl, "delete", "sdd", "own", f"--namespace={SHARING[1]}", "--wait=true")
        eventually(lambda: kubectl("get", "spe", "own", f"--namespace={SHARING[1]}", "--ignore-not-found"))
        kubectl("apply", "--server-side", "-f", "-", stdin=example.replace("name: story\n", "name: own\n"))
        eventually(lambda: not kubectl("get", "spe", "own", f"--namespace={SHARING[1]}", "--ignore-not-found"))

    def test_whatever_fails_no_request_does_and_no_token_changes(self) -> None:
        faults = Faults()
        eventually(lambda: whole(faults.wanted, set()))
        faults.persist()
        only = os.environ.get("FORETOKEN_TEST_FAULTS", "")
        every = faults.every()
        for fault in only.split(",") if only else every:
            with self.subTest(fault):
                self.suffer(fault, every[fault], faults.wanted)
        if EXISTING:
            print(f"left out, as it needs the node: {', '.join(sorted(OURS))}")
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

    def test_statuses_tell_what_drafts_come_to_and_whose_they_are(self) -> None:
        # Where it does not pay to draft there is little to tell of.
        Faults().persist()
        consumers = lambda: {f"{one['namespace']}/{one['name']}" for one in status(POOL, "spe").get("consumers", [])}
        with self.stream() as stream:
            for namespace in SHARING:
                eventually(lambda: float(status(namespace)["speculation"].get("acceptanceLength", 0)) > 1)
            eventually(lambda: consumers() == {f"{namespace}/story" for namespace in SHARING})
        self.assertEqual((stream.failures, stream.changes), ([], []))

    def test_routers_follow_what_becomes_ready_and_what_goes(self) -> None:
        eventually(lambda: whole({POOL: 1, SHARING[0]: 2, SHARING[1]: 2}, set()))
        chat = SHARING[0]
        example = service.document("SpecDecodeDeployment", chat)
        self.addCleanup(kubectl, "delete", "sdd", "fresh", f"--namespace={chat}", "--wait=true")
        begin = time.monotonic()
        kubectl("apply", "--server-side", "-f", "-", stdin=example.replace("name: story\n", "name: fresh\n", 1))
        eventually(lambda: kubectl("get", "service", "fresh-router", f"--namespace={chat}", "--ignore-not-found"))
        url = where.router(chat, "fresh")
        eventually(lambda: answers(url))
        taken = {"apply to first token": time.monotonic() - begin}

        # Prompts of their own, so that none is drawn to where another one was.
        bodies = [{"prompt": f"{number} birds sat on a tree.", "max_tokens": 4} for number in range(1000)]
        with Stream([url], bodies, [], each=8) as stream:
            stream.more(20)
            before = names(chat, "target", "fresh")
            kubectl("scale", "sdd/fresh", f"--namespace={chat}", "--replicas=2")
            eventually(lambda: len(names(chat, "target", "fresh")) == 2)
            new = next(name for name in names(chat, "target", "fresh") if name not in before)
            ask = lambda: json.load(urllib.request.urlopen(f"{where.proxy()}/api/v1/namespaces/{chat}/pods/{new}", timeout=5))
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

def load_tests(loader: unittest.TestLoader, _: object, __: object) -> unittest.TestSuite:
    """In the order in which they are written."""
    found = loader.getTestCaseNames(OnService)
    line = lambda name: getattr(OnService, name).__code__.co_firstlineno
    return unittest.TestSuite(OnService(name) for name in sorted(found, key=line))


if __name__ == "__main__":
    unittest.main()
