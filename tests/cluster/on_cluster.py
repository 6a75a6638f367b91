"""What any cluster that the other tests run on has to do: `make cluster-test`."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

import cluster
import image
import layout

sys.path.insert(0, str(layout.REPOSITORY / "tests" / "clients"))
import with_server

EXISTING = os.environ.get("FORETOKEN_TEST_CLUSTER") == "existing"
IMAGE = os.environ.get("FORETOKEN_TEST_POD_IMAGE", layout.POD_IMAGE)
PATIENCE = 120
EXECUTABLE = os.environ.get("FORETOKEN_EXECUTABLE", "")


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """What kubectl prints; an error with what it says if it fails."""
    command = ["kubectl"] if EXISTING else [str(layout.STATE.programs / "kubectl"), f"--kubeconfig={layout.STATE.kubeconfig}"]
    done = subprocess.run([*command, *arguments], input=stdin, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
    return done.stdout


class OnCluster(unittest.TestCase):
    """Two pods behind a Service in a namespace of their own."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.namespace = f"foretoken-test-{secrets.token_hex(4)}"
        kubectl("create", "namespace", cls.namespace)
        cls.addClassCleanup(kubectl, "delete", "namespace", cls.namespace, "--wait=true")
        manifest = (layout.MANIFESTS / "hello.yaml").read_text().replace(layout.POD_IMAGE, IMAGE)
        if EXISTING:
            manifest = manifest.replace("imagePullPolicy: Never", "imagePullPolicy: IfNotPresent")
        cls.in_namespace("apply", "-f", "-", stdin=manifest)
        cls.in_namespace("rollout", "status", "deployment/hello", f"--timeout={PATIENCE}s")

    @classmethod
    def in_namespace(cls, *arguments: str, stdin: str | None = None) -> str:
        return kubectl(f"--namespace={cls.namespace}", *arguments, stdin=stdin)

    def pods(self) -> list[str]:
        listed = json.loads(self.in_namespace("get", "pods", "-l", "app=hello", "-o", "json"))["items"]
        return sorted(pod["metadata"]["name"] for pod in listed if "deletionTimestamp" not in pod["metadata"])

    def in_pod(self, *arguments: str) -> str:
        return self.in_namespace("exec", "deployment/hello", "--", "/pod", *arguments).strip()

    def eventually(self, condition) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                if condition():
                    return
                problem = "it is not so"
            except AssertionError as error:
                problem = str(error)
            self.assertLess(time.monotonic(), until, problem)
            time.sleep(0.2)

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
        self.eventually(lambda: before[0] not in self.pods() and len(self.pods()) == 2)
        self.in_namespace("rollout", "status", "deployment/hello", f"--timeout={PATIENCE}s")
        self.eventually(lambda: {self.in_pod("get", "http://hello") for _ in range(20)} == set(self.pods()))

    def test_output_of_pods_is_kept(self) -> None:
        name = "printer"
        self.in_namespace("run", name, f"--image={IMAGE}", "--image-pull-policy=IfNotPresent", "--restart=Never", "--", "resolve", "localhost")
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
            self.eventually(lambda: self.starts(program) > before and kubectl("get", "--raw=/readyz") == "ok")
        self.assertEqual(len(self.pods()), 2)

    @staticmethod
    def starts(program: str) -> int:
        listed = cluster.ask({"do": "status"})["programs"]
        return next(one["starts"] for one in listed if one["name"] == program)

    @unittest.skipIf(EXISTING, "an existing cluster may know the world")
    def test_names_outside_do_not_exist(self) -> None:
        with self.assertRaisesRegex(AssertionError, "no such host"):
            self.in_pod("resolve", "example.com.")


@unittest.skipUnless(EXECUTABLE, "FORETOKEN_EXECUTABLE does not say which foretoken to put into the image")
@unittest.skipIf(EXISTING, "an existing cluster is not given images")
class Served(unittest.TestCase):
    """The image of foretoken and the shipped models: a router, a target and a draft, each a pod."""

    @classmethod
    def setUpClass(cls) -> None:
        models = layout.REPOSITORY / "models"
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "image.tar"
            image.foretoken("foretoken:dev", Path(EXECUTABLE), image.CERTIFICATES, archive)
            cluster.load(archive)
            for model in ("target", "draft"):
                image.model(f"story-{model}:dev", models / model, archive)
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
