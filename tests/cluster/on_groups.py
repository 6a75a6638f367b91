"""A target that spans pods, with the real controller of LeaderWorkerSets: `python3 tests/cluster test-groups`."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import unittest

import addons
import cluster
import layout
import service
from observed import condition, eventually, is_active, is_ready, message
from stream import Stream, complete, drafted, said
from where import EXECUTABLE, EXISTING, PATIENCE, exists, kubectl, router

sys.path.insert(0, str(layout.REPOSITORY / "tests" / "clients"))
import with_server

EXAMPLE = layout.REPOSITORY / "examples" / "group.yaml"
NAME = "pretended"
NAMESPACE = "groups"
KIND = "leaderworkersets.leaderworkerset.x-k8s.io"
BODIES = [{"model": NAME, "prompt": "Once upon a time", "temperature": 1, "seed": seed, "max_tokens": 24} for seed in range(4)]


def spoken() -> list[tuple]:
    """What `foretoken up` says of the same objects, in one process for each replica."""
    text = re.sub(r"^ *parallelism:.*\n", "", EXAMPLE.read_text(), flags=re.M)
    for model in ("target", "draft"):
        text = text.replace(f"oci://story-{model}:dev", f"file://{layout.REPOSITORY}/models/{model}")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        with with_server.server(EXECUTABLE, file.name) as url:
            return [said(complete(url, body)) for body in BODIES]


def status() -> dict:
    """What the deployment says of itself."""
    return json.loads(kubectl("get", "sdd", NAME, f"--namespace={NAMESPACE}", "-o", "json")).get("status", {})


def members() -> dict[str, str]:
    """Identities of the pods of the groups that are ready, by name."""
    listed = json.loads(kubectl("get", "pods", f"--namespace={NAMESPACE}", "-l", "leaderworkerset.sigs.k8s.io/name", "-o", "json"))
    ready = [pod["metadata"] for pod in listed["items"] if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]
    return {metadata["name"]: metadata["uid"] for metadata in ready}


def serves(groups: int) -> bool:
    """Whether so many groups of two pods are there, and the deployment says that it serves by all of them, with drafts."""
    told = status()
    return is_active(told) and told.get("targets") == f"{groups}/{groups}" and len(members()) == 2 * groups


@unittest.skipUnless(EXECUTABLE, "FORETOKEN_EXECUTABLE does not say which foretoken to put into the image")
@unittest.skipIf(EXISTING, "an existing cluster is not given controllers")
class OnGroups(unittest.TestCase):
    """examples/group.yaml, from a cluster without LeaderWorkerSets to one that has them."""

    @classmethod
    def setUpClass(cls) -> None:
        service.installed_for(cls)
        cls.addClassCleanup(kubectl, "delete", "--ignore-not-found", "-f", str(EXAMPLE), "--timeout=180s")
        cls.expected = spoken()

    def answers(self) -> None:
        """The router says what one machine says, and drafts are used."""
        url = router(NAMESPACE, NAME)
        self.assertEqual([said(complete(url, body)) for body in BODIES], self.expected)
        eventually(lambda: drafted(url, BODIES[0]) > 0)

    def test_1_without_the_controller_it_is_said_what_to_install(self) -> None:
        if exists(KIND):
            self.skipTest("the cluster has LeaderWorkerSets already")
        kubectl("apply", "--server-side", "-f", str(EXAMPLE))
        eventually(lambda: condition(status(), "Accepted") == "False LeaderWorkerSetMissing")
        self.assertIn("helm install lws", message(status(), "Accepted"))
        self.assertEqual(members(), {})

    def test_2_with_it_the_group_is_made_and_serves_as_one(self) -> None:
        cluster.built(addons.modules(["lws"]))
        cluster.install("lws")
        kubectl("apply", "--server-side", "-f", str(EXAMPLE))
        eventually(lambda: serves(1))
        self.assertEqual(sorted(members()), [f"{NAME}-group-0", f"{NAME}-group-0-1"])
        self.assertEqual(condition(status(), "Accepted"), "True Simulated")
        self.answers()

    def test_3_a_lost_worker_takes_its_group_along_and_another_comes(self) -> None:
        before = members()
        kubectl("delete", "pod", f"{NAME}-group-0-1", f"--namespace={NAMESPACE}", "--wait=false")
        eventually(lambda: serves(1) and not set(members().values()) & set(before.values()))
        eventually(lambda: complete(router(NAMESPACE, NAME), BODIES[0]))
        self.answers()

    def test_4_groups_are_scaled_and_rolled_under_requests_and_none_fails(self) -> None:
        kubectl("scale", f"sdd/{NAME}", f"--namespace={NAMESPACE}", "--replicas=2")
        eventually(lambda: serves(2))
        before = members()
        with Stream([router(NAMESPACE, NAME)], BODIES, self.expected) as stream:
            note = {"spec": {"target": {"template": {"metadata": {"annotations": {"note": "rolled"}}}}}}
            kubectl("patch", "sdd", NAME, f"--namespace={NAMESPACE}", "--type=merge", "-p", json.dumps(note))
            eventually(lambda: serves(2) and not set(members().values()) & set(before.values()))
            kubectl("scale", f"sdd/{NAME}", f"--namespace={NAMESPACE}", "--replicas=1")
            eventually(lambda: serves(1))
            stream.more(4)
        self.assertEqual((stream.failures, stream.changes), ([], []))

    def test_5_a_target_of_one_pod_replaces_its_groups_and_the_other_way_round(self) -> None:
        for tensor, pods in ((1, 0), (2, 2)):
            change = {"spec": {"target": {"parallelism": {"tensor": tensor}}}}
            kubectl("patch", "sdd", NAME, f"--namespace={NAMESPACE}", "--type=merge", "-p", json.dumps(change))
            eventually(lambda: len(members()) == pods and condition(status(), "Progressing") == "False Complete")
        eventually(lambda: serves(1))
        self.answers()

    def test_6_what_was_made_goes_with_its_deployment(self) -> None:
        kubectl("delete", "sdd", NAME, f"--namespace={NAMESPACE}", f"--timeout={PATIENCE}s")
        eventually(lambda: not kubectl("get", KIND, f"--namespace={NAMESPACE}", "-o", "name"))
        eventually(lambda: not members())


if __name__ == "__main__":
    unittest.main()
