"""How models come to real nodes, and what users are told of whatever keeps them from being served: part of `make cluster-test`."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import unittest
import urllib.error
from pathlib import Path
from unittest import mock

import drafts
import hub
import layout
import service
from observed import QUESTION, answers, condition, eventually, is_active, message, names, pods
from stream import complete, drafted, said
from where import EXECUTABLE, EXISTING, kubectl, router

sys.path.insert(0, str(layout.REPOSITORY / "tests" / "clients"))
import with_server

NAMESPACE = "troubled"
TARGET = "oci://story-target:dev"
DRAFT = "oci://story-draft:dev"


def deployment(name: str, uri: str = TARGET, endpoints: list[dict] | None = None, template: dict | None = None, **target: object) -> dict:
    """A deployment that is served unless something is wrong with what is said here."""
    spec = {"model": {"uri": uri, "servedName": name}, "target": {"replicas": 1, **target}}
    if template:
        spec["target"]["template"] = {"spec": template}
    if endpoints:
        spec["speculation"] = {"policy": {"type": "Speculative", "speculative": {"adaptive": False}}, "endpoints": endpoints}
    return manifest("SpecDecodeDeployment", name, spec)


def manifest(kind: str, name: str, spec: dict) -> dict:
    return {"apiVersion": "foretoken.io/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def asking(url: str) -> dict:
    """A template of pods that ask another hub."""
    return {"initContainers": [{"name": "model", "env": [{"name": "HF_ENDPOINT", "value": url}]}]}


def told(kind: str, name: str) -> dict:
    """What an object says of itself."""
    return json.loads(kubectl("get", kind, name, f"--namespace={NAMESPACE}", "-o", "json")).get("status", {})


def apply(*objects: dict) -> None:
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


@unittest.skipUnless(EXECUTABLE, "FORETOKEN_EXECUTABLE does not say which foretoken to put into the image")
@unittest.skipIf(EXISTING, "nodes of an existing cluster do not reach the hub and the folders of this machine")
class OnTrouble(unittest.TestCase):
    """Deployments of which each has something wrong, beside a pool that is not granted to them."""

    @classmethod
    def setUpClass(cls) -> None:
        models = layout.REPOSITORY / "models"
        here = hub.serving({"foretoken/story": models / "target", "foretoken/story-draft": models / "draft"})
        cls.hub = here.__enter__()
        cls.addClassCleanup(here.__exit__, None, None, None)
        service.installed_for(cls, f"--set=hub.endpoint={cls.hub.url}")
        with tempfile.TemporaryDirectory() as folder:
            drafts.load_stranger(Path(folder))
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        namespace["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
        apply(namespace)
        cls.addClassCleanup(kubectl, "delete", "namespace", NAMESPACE, service.POOL, "--ignore-not-found", "--timeout=180s")
        # Before the operator goes: it has to let endpoints go.
        cls.addClassCleanup(kubectl, "delete", "sdd,spe", "--all", f"--namespace={NAMESPACE}", "--timeout=180s")

    def is_told(self, name: str, of: str, reason: str, *words: str, kind: str = "sdd") -> None:
        """Waits until a condition has a reason, and sees that `kubectl describe` shows it with these words."""

        def is_shown() -> bool:
            shown = kubectl("describe", kind, name, f"--namespace={NAMESPACE}")
            # Long lines are shown as they are.
            for word in (reason.split()[-1], *words):
                self.assertIn(word, shown)
            return condition(told(kind, name), of) == reason

        eventually(is_shown)

    def discard(self, *found: str) -> None:
        kubectl("delete", *found, f"--namespace={NAMESPACE}", "--timeout=120s")

    def test_pods_that_do_not_become_ready_say_why_and_what_to_do(self) -> None:
        crowd = {"containers": [{"name": "target", "resources": {"requests": {"cpu": "1000"}}}]}
        small = {"volumes": [{"name": "model", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}}]}
        cases = [
            (deployment("crowded", template=crowd), "Unschedulable", "Insufficient cpu", "add or free nodes"),
            (deployment("claimless", "pvc://nobodys/model"), "ClaimNotFound", "nobodys", "create the PersistentVolumeClaim"),
            (deployment("imageless", "oci://registry.invalid/none:1"), "ImagePullFailed", "the model's image registry.invalid/none:1", "spec.model.uri"),
            (deployment("modelless", "file:///nowhere"), "ModelNotFound", "/nowhere", "correct spec.model"),
            (deployment("unknown", "hf://foretoken/none"), "ModelNotFound", "foretoken/none", "check owner, name and revision"),
            (deployment("full", "hf://foretoken/story", template=small), "VolumeFull", "ephemeral storage"),
            (deployment("hubless", "hf://foretoken/story", template=asking("http://127.0.0.1:1")), "HubUnreachable", "reach the hub"),
        ]
        apply(*(one for one, *_ in cases))
        for one, reason, *words in cases:
            name = one["metadata"]["name"]
            with self.subTest(name):
                self.is_told(name, "TargetReady", f"False {reason}", *words)
                self.is_told(name, "Ready", "False NoTargetReady", *words)
        self.discard("sdd", *(one["metadata"]["name"] for one, *_ in cases))

    def test_a_model_is_downloaded_from_a_hub_which_is_seen_and_served_to_those_with_a_key(self) -> None:
        key = "of-somebody-0123456789"
        metadata = {"name": "keys", "namespace": NAMESPACE}
        wanted = deployment("fetched", "hf://foretoken/story")
        wanted["spec"]["router"] = {"apiKeys": {"secretName": "keys"}}
        apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"somebody": key}}, wanted)
        progress = lambda: message(told("sdd", "fetched"), "Progressing")
        with self.hub.holding_back():
            eventually(lambda: re.search(r"the model is being downloaded: \d0 % of 20\.\d MB", progress()))
        eventually(lambda: condition(told("sdd", "fetched"), "Ready") == "True Serving")
        body = {"model": "fetched", "prompt": QUESTION, "max_tokens": 1}
        with self.assertRaises(urllib.error.HTTPError) as caught:
            complete(router(NAMESPACE, "fetched"), body)
        self.assertEqual(caught.exception.code, 401)
        self.assertEqual(complete(router(NAMESPACE, "fetched"), body, key=key)["usage"]["completion_tokens"], 1)
        self.discard("sdd", "fetched")

    def test_one_file_says_the_same_on_one_machine_and_on_the_cluster(self) -> None:
        draft = manifest("SpeculationEndpoint", "same", {"model": {"uri": "hf://foretoken/story-draft"}})
        wanted = deployment("same", "hf://foretoken/story", endpoints=[{"name": "same"}])
        bodies = [{"model": "same", "prompt": QUESTION, "max_tokens": 48, "temperature": 1, "seed": seed} for seed in range(4)]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "same.yaml"
            file.write_text("\n---\n".join(map(json.dumps, (draft, wanted))))
            with mock.patch.dict(os.environ, HF_ENDPOINT=self.hub.url, HF_HOME=folder), with_server.server(EXECUTABLE, file) as url:
                expected = [said(complete(url, body)) for body in bodies]
            kubectl("apply", "--server-side", "-f", str(file))
        eventually(lambda: is_active(told("sdd", "same")))
        url = router(NAMESPACE, "same")
        self.assertEqual([said(complete(url, body)) for body in bodies], expected)
        eventually(lambda: drafted(url, bodies[0]) > 0)
        self.discard("sdd", "same")
        self.discard("spe", "same")

    def test_a_model_on_a_claim_is_served(self) -> None:
        volume = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "hostPath": {"path": str(layout.REPOSITORY / "models")},
            "claimRef": {"name": "models", "namespace": NAMESPACE},
        }
        claim = {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
        core = {"apiVersion": "v1", "metadata": {"name": "models", "namespace": NAMESPACE}}
        apply(
            {**core, "kind": "PersistentVolume", "metadata": {"name": "models"}, "spec": volume},
            {**core, "kind": "PersistentVolumeClaim", "spec": claim},
            deployment("claimed", "pvc://models/target"),
        )
        self.addCleanup(kubectl, "delete", "pv", "models", "--wait=false")
        eventually(lambda: condition(told("sdd", "claimed"), "Ready") == "True Serving")
        answer = complete(router(NAMESPACE, "claimed"), {"model": "claimed", "prompt": QUESTION, "max_tokens": 4})
        self.assertEqual(answer["usage"]["completion_tokens"], 4)
        self.discard("sdd", "claimed")
        self.discard("pvc", "models")

    def test_endpoints_that_cannot_be_used_are_told_and_requests_are_served_without(self) -> None:
        pool = service.document("SpeculationEndpoint", service.POOL)
        namespaces = service.EXAMPLE.read_text().partition("apiVersion: foretoken.io")[0]
        kubectl("apply", "--server-side", "-f", "-", stdin=f"{namespaces}{pool}")
        self.addCleanup(kubectl, "delete", "spe", "--all", f"--namespace={service.POOL}", "--timeout=120s")
        stranger = manifest("SpeculationEndpoint", "stranger", {"model": {"uri": "oci://story-draft:stranger"}})
        cases = [
            (deployment("alone", endpoints=[{"name": "nobody"}]), "EndpointsResolved", "EndpointNotFound", "nobody"),
            (deployment("refused", endpoints=[{"name": "story", "namespace": service.POOL}]), "EndpointsResolved", "NotGranted", "allowedNamespaces"),
            (deployment("babel", endpoints=[{"name": "stranger"}]), "EndpointsCompatible", "Incompatible", "requests are served without it"),
        ]
        apply(stranger, *(one for one, *_ in cases))
        for one, of, reason, *words in cases:
            name = one["metadata"]["name"]
            with self.subTest(name):
                self.is_told(name, of, f"False {reason}", *words)
                eventually(lambda: condition(told("sdd", name), "Ready") == "True Serving")
                answer = complete(router(NAMESPACE, name), {"model": name, "prompt": QUESTION, "max_tokens": 4})
                self.assertEqual(answer["usage"]["completion_tokens"], 4)
        # What the message says to do helps.
        kubectl("label", "namespace", NAMESPACE, "drafts=shared")
        eventually(lambda: told("sdd", "refused")["speculation"]["state"] == "Active")
        self.discard("sdd", *(one["metadata"]["name"] for one, *_ in cases))
        self.discard("spe", "stranger")

    def test_what_is_not_accepted_says_why_and_what_runs_goes_on(self) -> None:
        apply(deployment("fine"))
        eventually(lambda: condition(told("sdd", "fine"), "Ready") == "True Serving")
        before = set(pods(NAMESPACE))
        apply(deployment("fine", accelerator={"profile": "nobodys"}))
        self.is_told("fine", "Accepted", "False ProfileNotFound", "nobodys", "create it")
        self.assertEqual(set(pods(NAMESPACE)), before)
        self.assertEqual(complete(router(NAMESPACE, "fine"), {"model": "fine", "prompt": QUESTION, "max_tokens": 1})["usage"]["completion_tokens"], 1)
        apply(deployment("fine"), {**deployment("twin"), "spec": deployment("fine")["spec"]})
        self.is_told("twin", "Accepted", "True ServedNameShared", "fine of this namespace")
        self.discard("sdd", "twin")

    def test_what_is_edited_by_hand_is_put_back(self) -> None:
        apply(deployment("kept"))
        eventually(lambda: condition(told("sdd", "kept"), "Ready") == "True Serving")
        kubectl("scale", "deployment", "kept-target", f"--namespace={NAMESPACE}", "--replicas=0")
        kubectl("delete", "service", "kept-router", f"--namespace={NAMESPACE}")
        eventually(lambda: len(names(NAMESPACE, "target", "kept")) == 1)
        eventually(lambda: condition(told("sdd", "kept"), "Ready") == "True Serving")
        eventually(lambda: answers(router(NAMESPACE, "kept"), "kept"))
        self.discard("sdd", "kept")


if __name__ == "__main__":
    unittest.main()
