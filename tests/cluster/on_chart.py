"""The chart in an API server: `make api-test`. Its pods run in the tests of `on_service`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import layout
from where import kubectl

CHART = layout.REPOSITORY / "charts" / "foretoken"
EXAMPLES = layout.REPOSITORY / "examples"
RIGHTS = layout.REPOSITORY / "docs" / "operator.md"
RELEASE = "foretoken"
NAMESPACE = "foretoken-chart"
EXECUTABLE = os.environ.get("FORETOKEN_EXECUTABLE")
KINDS = ["specdecodedeployments", "speculationendpoints", "acceleratorprofiles"]
# Everything that can be set, so that every line of a template is rendered.
EVERYTHING = {
    "image": {"repository": "registry.example/foretoken", "digest": f"sha256:{'0' * 64}", "pullPolicy": "Always", "pullSecrets": ["one", "1e3"]},
    "hub": {"endpoint": "https://hub.example"},
    "certificates": {"from": "cert-manager", "issuer": "internal"},
    "replicas": 2,
    "log": "debug,kube=info",
    "resources": {"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}},
    "definitions": {"install": True},
    # Names that are something else in YAML where they are not quoted.
    "profiles": {"cpu": {"device": "cpu"}, "100": {"device": "cpu"}, "null": {"device": "cpu"}, "gpu": {"device": "cuda", "resource": "nvidia.com/gpu"}},
    "monitoring": {name: {"install": True, "labels": {"a": "b"}} for name in ("podMonitor", "rules", "dashboard")},
    "serviceAccount": {"annotations": {"a": "b"}},
    "pod": {
        "labels": {"a": "true"},
        "annotations": {"a": "b"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "true",
    },
}
# What is no value of the chart, and what is said of it.
WRONG = {
    "image.registry=x": "additional properties 'registry'",
    "image.pullPolicy=Sometimes": "pullPolicy",
    "image.digest=sha256:0": "digest",
    "replicas=-1": "replicas",
    "hub.endpoint=hub.example": "endpoint",
    "certificates.from=nobody": "certificates",
    "certificates.from=cert-manager": "issuer",
    "certificates.issuer=Issuer/": "issuer",
    "profiles.gpu.device=tpu": "device",
    "monitoring.rules.install=maybe": "install",
    "pod.hostNetwork=true": "additional properties 'hostNetwork'",
}


def helm(*arguments: str, values: dict | None = None) -> str:
    """What Helm prints; an error with what it says if it fails."""
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "values.json"
        file.write_text(json.dumps(values or {}))
        # What it has seen is of no use to anybody later.
        environment = os.environ | {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")}
        command = ["helm", *arguments, *([f"--values={file}"] if values else [])]
        done = subprocess.run(command, text=True, capture_output=True, env=environment, check=False)
    if done.returncode != 0:
        raise AssertionError(f"helm {' '.join(arguments)}: {done.stderr}{done.stdout}")
    return done.stdout


def objects(text: str) -> list[dict]:
    """The objects of a YAML text, which kubectl reads."""
    listed = kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", stdin=text)
    found = []
    while listed.strip():
        value, end = json.JSONDecoder().raw_decode(listed.lstrip())
        listed = listed.lstrip()[end:]
        found += value["items"] if value["kind"] == "List" else [value]
    return found


def documented() -> dict[str, set[str]]:
    """Verbs of each resource, as documentation lists them."""
    section = RIGHTS.read_text().partition("\n## Rights\n")[2].partition("\n## ")[0]
    group, verbs, rights = "", "", {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3 or cells[0] in ("group", "---"):
            continue
        group = cells[0].strip("`") or group
        verbs = verbs if cells[2] == "the same" else cells[2]
        for resource in re.findall(r"`([^`]+)`", cells[1]):
            rights[f"{'' if group == 'core' else group}/{resource}"] = set(verbs.split(", "))
    return rights


def granted(rendered: list[dict]) -> dict[str, set[str]]:
    """Verbs of each resource, as the chart's roles give them."""
    rights: dict[str, set[str]] = {}
    for role in rendered:
        for rule in role.get("rules", []) if role["kind"] in ("Role", "ClusterRole") else []:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    rights.setdefault(f"{group}/{resource}", set()).update(rule["verbs"])
    return rights


class OnChart(unittest.TestCase):
    """Helm and the API server on the chart."""

    def test_it_has_no_fault_that_helm_knows_of(self) -> None:
        for values in (None, EVERYTHING):
            helm("lint", "--strict", str(CHART), values=values)

    def test_monitoring_is_rendered_where_its_kinds_are_known(self) -> None:
        apis = [f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "PrometheusRule")]
        known = helm("template", RELEASE, str(CHART), *apis, values=EVERYTHING)
        for kind in ("PodMonitor", "PrometheusRule"):
            self.assertIn(f"kind: {kind}\n", known)
            self.assertNotIn(f"kind: {kind}\n", helm("template", RELEASE, str(CHART), values=EVERYTHING))
        # Grafana's and Prometheus' own braces are not Helm's.
        self.assertIn("{{ $labels.namespace }}", known)
        dashboard = re.search(r"^  foretoken.json: (.+)$", known, re.M).group(1)
        self.assertEqual(json.loads(json.loads(dashboard))["uid"], "foretoken")

    def test_its_version_is_that_of_the_workspace(self) -> None:
        version = re.search(r'^version = "(.+)"', (layout.REPOSITORY / "Cargo.toml").read_text(), re.M).group(1)
        said = re.findall(r"^(?:version|appVersion): (.+)", (CHART / "Chart.yaml").read_text(), re.M)
        self.assertEqual(said, [version, version])

    def test_values_that_are_not_known_or_cannot_be_are_refused_by_name(self) -> None:
        for value, said in WRONG.items():
            with self.subTest(value), self.assertRaises(AssertionError) as refused:
                helm("template", RELEASE, str(CHART), f"--set={value}")
            self.assertIn(said, str(refused.exception))

    def test_the_rights_are_those_that_are_documented(self) -> None:
        rights = granted(objects(helm("template", RELEASE, str(CHART))))
        self.assertEqual(rights, documented())
        self.assertNotIn("*", str(rights))

    def test_pods_may_do_nothing_that_they_need_not(self) -> None:
        rendered = objects(helm("template", RELEASE, str(CHART), values=EVERYTHING))
        pods = [one["spec"]["template"]["spec"] for one in rendered if one["kind"] == "Deployment"]
        pods += [one["spec"]["template"]["spec"] for one in rendered if one["kind"] == "Job"]
        pods += [one["spec"] for one in rendered if one["kind"] == "Pod"]
        self.assertEqual(len(pods), 3)
        for pod in pods:
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            self.assertEqual(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
            for container in pod["containers"]:
                context = container["securityContext"]
                self.assertTrue(context["readOnlyRootFilesystem"])
                self.assertFalse(context["allowPrivilegeEscalation"])
                self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                self.assertIn("memory", container["resources"]["limits"])

    def test_a_release_is_installed_upgraded_with_its_definitions_and_leaves_them_when_it_goes(self) -> None:
        if any(kind in kubectl("get", "crd", "-o", "name") for kind in KINDS):
            self.skipTest("the kinds are installed already, and are not this test's to remove")
        where = [f"--namespace={NAMESPACE}", "--create-namespace"]
        self.addCleanup(kubectl, "delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")
        self.addCleanup(kubectl, "delete", "crd", "--ignore-not-found", *[f"{kind}.foretoken.io" for kind in KINDS])
        values = {"profiles": {"cpu": {"device": "cpu"}}}
        with tempfile.TemporaryDirectory() as folder:
            older = Path(folder) / "foretoken"
            shutil.copytree(CHART, older)
            file = older / "definitions" / "specdecodedeployments.yaml"
            file.write_text(file.read_text().replace("    - sdd\n", "    - old\n"))
            installed = helm("install", RELEASE, str(older), *where, values=values)
        self.assertIn("helm test foretoken", installed)
        self.assertEqual(self.short_name(), "old")
        self.assertIn("NOT INSTALLED: the AcceleratorProfiles cpu", installed)
        kubectl("wait", "--for=condition=Established", "--timeout=60s", *[f"crd/{kind}.foretoken.io" for kind in KINDS])

        for one in EXAMPLES.glob("*.yaml"):
            with self.subTest(one.name):
                self.dry(one.read_text())

        helm("upgrade", RELEASE, str(CHART), *where, values=values)
        self.assertEqual(self.short_name(), "sdd", "definitions are upgraded")
        device = ("get", "acceleratorprofile", "cpu", "-o", "jsonpath={.spec.device}")
        self.assertEqual(kubectl(*device), "cpu")
        helm("upgrade", RELEASE, str(CHART), *where, values={"profiles": {}})
        with self.assertRaisesRegex(AssertionError, "not found"):
            kubectl(*device)
        known = "--api-versions=foretoken.io/v1alpha1/AcceleratorProfile"
        rendered = helm("template", RELEASE, str(CHART), "--namespace=default", known, values=EVERYTHING)
        self.assertIn("kind: AcceleratorProfile\n", rendered)
        self.dry(rendered)
        # Nothing runs the pod that would take finalizers away here: that is told, and keeps nothing.
        with self.assertRaisesRegex(AssertionError, "completed with 1 error"):
            helm("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--timeout=3s")
        self.assertEqual(json.loads(helm("list", "--all-namespaces", "--output=json")), [])
        left = kubectl("get", "job,clusterrole,clusterrolebinding", "--all-namespaces", "-o", "name")
        self.assertNotIn("foretoken", left)
        self.assertEqual(self.short_name(), "sdd", "objects of users outlive the release")
        for let_go in self.ways_to_let_go():
            self.endpoints_are_held_until(let_go)
        helm("install", RELEASE, str(CHART), *where)

    @staticmethod
    def ways_to_let_go() -> list[list[str]]:
        """What takes finalizers away where no operator is: what the chart runs, and what documentation says."""
        section = RIGHTS.read_text().partition("\n## Deletion\n")[2].partition("\n## ")[0]
        shell = re.search(r"```sh\n(.+?)```", section, re.S).group(1)
        return [["bash", "-ec", shell], *([[EXECUTABLE, "operator", "--retire"]] if EXECUTABLE else [])]

    def endpoints_are_held_until(self, let_go: list[str]) -> None:
        """Without an operator an endpoint that was used does not go, until it is let go; what others hold stays theirs."""
        for name, finalizers in (("used", ["foretoken.io/drain"]), ("others", ["example.com/a", "foretoken.io/drain"]), ("free", [])):
            metadata = {"name": name, "namespace": NAMESPACE, "finalizers": finalizers}
            body = {"apiVersion": "foretoken.io/v1alpha1", "kind": "SpeculationEndpoint", "metadata": metadata}
            kubectl("create", "-f", "-", stdin=json.dumps(body | {"spec": {"model": {"uri": "hf://a/b"}}}))
            # Whatever fails here, the kinds can be removed.
            self.addCleanup(self.strip, name)
        kubectl("delete", "spe", "--all", f"--namespace={NAMESPACE}", "--wait=false")
        left = ("get", "spe", f"--namespace={NAMESPACE}", "-o", "jsonpath={.items[*].metadata.name} {.items[*].metadata.finalizers}")
        self.assertEqual(kubectl(*left).split()[:2], ["others", "used"])
        subprocess.run(let_go, check=True, capture_output=True)
        self.assertEqual(kubectl(*left), 'others ["example.com/a"]')
        self.strip("others")
        self.assertEqual(kubectl(*left).strip(), "")

    @staticmethod
    def strip(name: str) -> None:
        """Lets an endpoint go whatever holds it, if it is there."""
        if kubectl("get", "spe", name, f"--namespace={NAMESPACE}", "--ignore-not-found"):
            kubectl("patch", "spe", name, f"--namespace={NAMESPACE}", "--type=merge", '--patch={"metadata":{"finalizers":null}}')

    @staticmethod
    def short_name() -> str:
        path = "jsonpath={.spec.names.shortNames[0]}"
        return kubectl("get", "crd", "specdecodedeployments.foretoken.io", "-o", path)

    @staticmethod
    def dry(text: str) -> None:
        """Has the API server say what it would do, in a namespace that there is."""
        text = re.sub(r"(\bnamespace: )(?:drafts|chat|tales|groups)$", r"\1default", text, flags=re.M)
        kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=text)


if __name__ == "__main__":
    unittest.main()
