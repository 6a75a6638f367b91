"""What any cluster that the other tests run on has to do: `make cluster-test`."""

from __future__ import annotations

import json
import secrets
import sys
import unittest
import urllib.request

import cluster
import layout
import service
import where
from observed import eventually
from where import EXECUTABLE, EXISTING, PATIENCE, exists, kubectl

sys.path.insert(0, str(layout.REPOSITORY / "tests" / "clients"))
import with_server


class Namespace(unittest.TestCase):
    """Tests in a namespace of their own."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.namespace = f"foretoken-test-{secrets.token_hex(4)}"
        kubectl("create", "namespace", cls.namespace)
        cls.addClassCleanup(kubectl, "delete", "namespace", cls.namespace, "--wait=true")

    @classmethod
    def in_namespace(cls, *arguments: str, stdin: str | None = None) -> str:
        return kubectl(f"--namespace={cls.namespace}", *arguments, stdin=stdin)

    @classmethod
    def apply(cls, name: str) -> None:
        """Applies a manifest of this folder."""
        cls.in_namespace("apply", "-f", "-", stdin=where.there((layout.MANIFESTS / name).read_text()))


class OnCluster(Namespace):
    """Two pods behind a Service."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.apply("hello.yaml")
        cls.in_namespace("rollout", "status", "deployment/hello", f"--timeout={PATIENCE}s")

    def pods(self) -> list[str]:
        listed = json.loads(self.in_namespace("get", "pods", "-l", "app=hello", "-o", "json"))["items"]
        return sorted(pod["metadata"]["name"] for pod in listed if "deletionTimestamp" not in pod["metadata"])

    def in_pod(self, *arguments: str) -> str:
        return self.in_namespace("exec", "deployment/hello", "--", "/pod", *arguments).strip()

    def test_a_service_is_reached_by_its_name_and_spreads_over_its_pods(self) -> None:
        seen = {self.in_pod("get", "http://hello") for _ in range(20)}
        self.assertEqual(sorted(seen), self.pods())

    def test_names_of_services_resolve_to_their_addresses(self) -> None:
        address = self.in_namespace("get", "service", "hello", "-o", "jsonpath={.spec.clusterIP}")
        self.assertIn(address, self.in_pod("resolve", f"hello.{self.namespace}.svc").split())
        self.assertIn("10.96.0.1" if not EXISTING else ".", self.in_pod("resolve", "kubernetes.default.svc"))

    def test_a_deleted_pod_is_replaced_and_serves(self) -> None:
        before = self.pods()
        self.in_namespace("delete", "pod", before[0], "--wait=false")
        eventually(lambda: before[0] not in self.pods() and len(self.pods()) == 2)
        self.in_namespace("rollout", "status", "deployment/hello", f"--timeout={PATIENCE}s")
        eventually(lambda: {self.in_pod("get", "http://hello") for _ in range(20)} == set(self.pods()))

    def test_output_of_pods_is_kept(self) -> None:
        name = "printer"
        self.in_namespace("run", name, f"--image={where.pod_image()}", "--image-pull-policy=IfNotPresent", "--restart=Never", "--", "resolve", "localhost")
        self.in_namespace("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", f"--timeout={PATIENCE}s")
        self.assertIn("127.0.0.1", self.in_namespace("logs", name))

    @unittest.skipIf(EXISTING, "the control plane of an existing cluster is left alone")
    def test_pods_serve_while_the_control_plane_is_away_and_it_comes_back(self) -> None:
        address = self.in_namespace("get", "service", "hello", "-o", "jsonpath={.spec.clusterIP}")
        for program in ("etcd", "kube-apiserver"):
            before = self.starts(program)
            cluster.ask({"do": "kill", "program": program})
            with urllib.request.urlopen(f"http://{address}", timeout=10) as answer:
                self.assertEqual(answer.status, 200)
            eventually(lambda: self.starts(program) > before and kubectl("get", "--raw=/readyz") == "ok")
        self.assertEqual(len(self.pods()), 2)

    @staticmethod
    def starts(program: str) -> int:
        listed = cluster.ask({"do": "status"})["programs"]
        return next(one["starts"] for one in listed if one["name"] == program)

    @unittest.skipIf(EXISTING, "an existing cluster may not enforce policies")
    def test_a_network_policy_keeps_strangers_out_and_lets_the_granted_in(self) -> None:
        address = self.in_namespace("get", "service", "hello", "-o", "jsonpath={.spec.clusterIP}")
        other = f"{self.namespace}-other"
        kubectl("create", "namespace", other)
        self.addCleanup(kubectl, "delete", "namespace", other, "--wait=false")
        kubectl(f"--namespace={other}", "run", "asker", f"--image={where.pod_image()}", "--image-pull-policy=Never", "--", "pause")
        kubectl(f"--namespace={other}", "wait", "pod/asker", "--for=condition=Ready", f"--timeout={PATIENCE}s")

        def answered() -> bool:
            try:
                return bool(kubectl(f"--namespace={other}", "exec", "asker", "--", "/pod", "get", f"http://{address}"))
            except AssertionError as error:
                self.assertIn("deadline exceeded", str(error))
                return False

        self.assertTrue(answered(), "without a policy everybody is let in")
        self.addCleanup(self.in_namespace, "delete", "networkpolicy", "hello")
        granted = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": other}}}
        for peers, expected in (([], False), ([granted], True)):
            rules = [{"from": peers, "ports": [{"port": "http"}]}] if peers else []
            policy = {"podSelector": {"matchLabels": {"app": "hello"}}, "policyTypes": ["Ingress"], "ingress": rules}
            manifest = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "hello"}, "spec": policy}
            self.in_namespace("apply", "-f", "-", stdin=json.dumps(manifest))
            eventually(lambda: answered() == expected)
            ready = self.in_namespace("get", "deployment", "hello", "-o", "jsonpath={.status.readyReplicas}")
            self.assertEqual(ready, "2", "the node's own probes always pass")

    @unittest.skipIf(EXISTING, "an existing cluster may know the world")
    def test_names_outside_do_not_exist(self) -> None:
        with self.assertRaisesRegex(AssertionError, "no such host"):
            self.in_pod("resolve", "example.com.")


class Groups(Namespace):
    """Pods that live and die together."""

    def setUp(self) -> None:
        if not exists("leaderworkersets.leaderworkerset.x-k8s.io"):
            self.skipTest("the cluster has no LeaderWorkerSets (--with lws)")

    def test_groups_become_ready_and_a_lost_worker_takes_its_group_along(self) -> None:
        self.apply("group.yaml")
        self.in_namespace("wait", "leaderworkerset/group", "--for=condition=Available", f"--timeout={PATIENCE}s")
        eventually(lambda: len(self.members()) == 6)
        before = self.members()
        self.in_namespace("delete", "pod", "group-0-1", "--wait=false")
        eventually(lambda: len(self.members()) == 6 and self.members()["group-0"] != before["group-0"])
        self.assertEqual(self.members()["group-1-1"], before["group-1-1"], "another group is not touched")

    def members(self) -> dict[str, str]:
        """Identities of the groups' pods by name, of those that are ready."""
        listed = json.loads(self.in_namespace("get", "pods", "-o", "json"))["items"]
        ready = [pod for pod in listed if {"type": "Ready", "status": "True"}.items() <= self.condition(pod).items()]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in ready}

    @staticmethod
    def condition(pod: dict) -> dict:
        return next((one for one in pod["status"].get("conditions", []) if one["type"] == "Ready"), {})


class Simulated(Namespace):
    """Pods without processes."""

    def setUp(self) -> None:
        if not exists("stages.kwok.x-k8s.io"):
            self.skipTest("the cluster has no simulated nodes (--with kwok)")

    def test_a_hundred_simulated_pods_become_ready(self) -> None:
        self.addCleanup(kubectl, "delete", "node", "simulated-0", "--ignore-not-found")
        self.apply("simulated.yaml")
        self.in_namespace("rollout", "status", "deployment/simulated", f"--timeout={PATIENCE}s")


@unittest.skipUnless(EXECUTABLE, "FORETOKEN_EXECUTABLE does not say which foretoken to put into the image")
@unittest.skipIf(EXISTING, "an existing cluster is not given images")
class Served(unittest.TestCase):
    """The image of foretoken and the shipped models: a router, a target and a draft, each a pod."""

    @classmethod
    def setUpClass(cls) -> None:
        for archive in service.made().values():
            cluster.load(archive)
        kubectl("apply", "-f", str(layout.MANIFESTS / "story.yaml"))
        cls.addClassCleanup(kubectl, "delete", "namespace", "story", "--wait=true")
        kubectl("--namespace=story", "wait", "--for=condition=Available", "deployment", "--all", f"--timeout={PATIENCE}s")
        address = kubectl("--namespace=story", "get", "service", "story-router", "-o", "jsonpath={.spec.clusterIP}")
        cls.url = f"http://{address}:8000"

    @staticmethod
    def complete(url: str, body: dict) -> dict:
        """What a server answers to a chat or a completion."""
        path = "chat/completions" if "messages" in body else "completions"
        content = json.dumps({"model": "story-10m", "max_tokens": 48, **body}).encode()
        request = urllib.request.Request(f"{url}/v1/{path}", content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def test_a_service_of_pods_says_what_one_machine_says(self) -> None:
        question = "Question: Tom has 3 apples and buys 5 more. How many apples does he have?"
        bodies = [{"prompt": question, "temperature": 0}, {"messages": [{"role": "user", "content": question}], "temperature": 0}]
        bodies += [{"prompt": question, "temperature": 1, "seed": seed} for seed in range(8)]
        bodies += [{"messages": [{"role": "user", "content": question}], "temperature": 0.7, "seed": seed} for seed in range(4)]
        with with_server.server(EXECUTABLE) as url:
            expected = [self.complete(url, body) for body in bodies]
        drafted = 0
        for body, one in zip(bodies, expected):
            answer = self.complete(self.url, body)
            for key in ("text", "message", "finish_reason"):
                self.assertEqual(answer["choices"][0].get(key), one["choices"][0].get(key), body)
            drafted += answer["usage"]["foretoken"]["drafted"]
        self.assertGreater(drafted, 0, "no pod drafted anything")

    def test_its_pods_run_as_nobody(self) -> None:
        listed = json.loads(kubectl("--namespace=story", "get", "pods", "-o", "json"))["items"]
        self.assertEqual(len(listed), 3)
        for pod in listed:
            user = pod["status"]["containerStatuses"][0]["user"]["linux"]
            self.assertEqual((user["uid"], user["gid"]), (65532, 65532))


if __name__ == "__main__":
    unittest.main()
