"""What an API server with our definitions accepts and refuses is what `foretoken check` does: `make api-test`."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import build
import layout
from groups import DEFINITIONS
from where import EXECUTABLE, KUBECTL, PATIENCE, exists, kubectl

FIXTURES = layout.REPOSITORY / "tests" / "fixtures" / "api"
KINDS = {
    "SpecDecodeDeployment": ("specdecodedeployments", "namespaces/default/"),
    "SpeculationEndpoint": ("speculationendpoints", "namespaces/default/"),
    "AcceleratorProfile": ("acceleratorprofiles", ""),
}
# What the operator makes of given objects, as it is reviewed.
BUILT = layout.REPOSITORY / "operator" / "tests" / "golden"
GROUPS = "leaderworkersets.leaderworkerset.x-k8s.io"
# How many objects are spoilt.
SPOILT = int(os.environ.get("FORETOKEN_SPOILT_OBJECTS", "300"))
EXPECTED = "test.foretoken.io/"
# What stands in place of a value.
SPOILS = [None, True, False, -1, 0, 1, 2, 33, 64, 65, 1000, 1001, 1.5, 10**12, "", "x", "A", "a b", "1/2", "1/1", "Auto", "SSD"]
SPOILS += ["hf://a/b", "hf://a", "hf://a/b@c@d", "s3://x", "oci://", "é" * 60, "x" * 70, "x" * 1100]
SPOILS += [[], {}, [{}], [None], {"a": "b"}, {"a": None}]


class Server:
    """The API server, asked through a proxy: one that is kept is quicker than kubectl for each object."""

    def __init__(self) -> None:
        self.proxy = subprocess.Popen([*KUBECTL, "proxy", "--port=0"], stdout=subprocess.PIPE, text=True)
        self.url = "http://" + self.proxy.stdout.readline().split()[-1]

    def close(self) -> None:
        self.proxy.terminate()
        self.proxy.wait()
        self.proxy.stdout.close()

    def refusal(self, value: dict) -> str:
        """Why the API server refuses an object; empty if it does not. Nothing is kept."""
        plural, namespace = KINDS[value["kind"]]
        path = f"/apis/foretoken.io/v1alpha1/{namespace}{plural}?dryRun=All&fieldValidation=Strict"
        request = urllib.request.Request(self.url + path, json.dumps(value).encode(), {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except urllib.error.HTTPError as error:
            said = error.read().decode()
            if error.code >= 500:
                raise AssertionError(f"the API server failed: {said}") from error
            return json.loads(said)["message"]
        return ""


def offline(value: dict) -> str:
    """Why `foretoken check` refuses an object; empty if it does not."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(value, file)
        file.flush()
        done = subprocess.run([EXECUTABLE, "check", file.name], text=True, capture_output=True, check=False)
    if done.returncode not in (0, 64):
        raise AssertionError(f"foretoken check ended with {done.returncode}: {done.stderr}")
    return done.stderr if done.returncode else ""


def table() -> list[dict]:
    """The objects of the table."""
    files = [(FIXTURES / f"{plural}.yaml").read_text() for plural, _ in KINDS.values()]
    objects = [value for text in files for value in objects_of(text)]
    return objects + brought_along(objects)


def objects_of(text: str) -> list[dict]:
    """The objects of a file."""
    return answered(kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", stdin=text))


def answered(listed: str) -> list[dict]:
    """The objects that kubectl printed as JSON."""
    objects = []
    while listed.strip():
        value, end = json.JSONDecoder().raw_decode(listed.lstrip())
        listed = listed.lstrip()[end:]
        objects += value["items"] if value["kind"] == "List" else [value]
    return objects


def built(file: Path) -> list[dict]:
    """What the operator made, in a namespace that there is, but for kinds whose definitions are nobody's here."""
    known = [text for text in file.read_text().split("---\n") if "apiVersion: cert-manager.io/" not in text]
    objects = objects_of("---\n".join(known))
    for value in list(objects):
        value["metadata"]["namespace"] = "default"
        # Their definition looks at pods less closely than the API server does.
        templates = value["spec"]["leaderWorkerTemplate"] if value["kind"] == "LeaderWorkerSet" else {}
        for name in ("leaderTemplate", "workerTemplate"):
            if name in templates:
                labels = {"matchLabels": templates[name]["metadata"]["labels"]}
                metadata = {"name": f"{value['metadata']['name']}-{name.lower()}", "namespace": "default"}
                spec = {"selector": labels, "template": templates[name]}
                objects.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    return objects


def lost(wanted: object, found: object, path: str = "") -> list[str]:
    """Fields that are not as they are wanted; there may be more."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [place for name, value in wanted.items() for place in lost(value, found.get(name), f"{path}.{name}")]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [place for index, pair in enumerate(zip(wanted, found)) for place in lost(*pair, f"{path}[{index}]")]
    # What is empty may be left out.
    return [] if wanted == found or (found is None and not wanted and wanted is not False) else [path]


def brought_along(objects: list[dict]) -> list[dict]:
    """The endpoints among the objects, each brought along by a deployment: what is said of one holds there too."""
    brought = []
    for value in objects:
        annotations = dict(value["metadata"]["annotations"])
        field = annotations.get(f"{EXPECTED}field", "spec.")
        # What is said of its metadata is not part of a template.
        if value["kind"] == "SpeculationEndpoint" and field.startswith("spec."):
            if annotations[f"{EXPECTED}verdict"] == "Refused":
                annotations[f"{EXPECTED}field"] = field.replace("spec.", "spec.speculation.endpoints[0].template.", 1)
            speculation = {"policy": {"type": "Speculative"}, "endpoints": [{"template": value["spec"]}]}
            spec = {"model": {"uri": "hf://owner/name"}, "speculation": speculation}
            metadata = {"name": value["metadata"]["name"], "annotations": annotations}
            brought.append({**value, "kind": "SpecDecodeDeployment", "metadata": metadata, "spec": spec})
    return brought


def places(value: object) -> list[tuple[dict | list, str | int]]:
    """Everything within a value, as what it is in and its key there."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in entries for place in [(value, key), *places(inner)]]


def spoil(value: dict, values: list, names: list[str], chance: random.Random) -> dict:
    """The object with something else in it, or without something."""
    value = copy.deepcopy(value)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        within, key = chance.choice(places({"spec": value.get("spec")}) + [(value["metadata"], "name")])
        other = copy.deepcopy(chance.choice(SPOILS + values))
        way = chance.random()
        if way < 0.7 or within is value["metadata"]:
            within[key] = other
        elif isinstance(within, list):
            within.append(copy.deepcopy(chance.choice(within)))
        elif way < 0.85:
            within[chance.choice(names)] = other
        else:
            del within[key]
    return value


@unittest.skipUnless(EXECUTABLE, "FORETOKEN_EXECUTABLE does not say which foretoken to ask")
class OnApi(unittest.TestCase):
    """The definitions in an API server."""

    @classmethod
    def setUpClass(cls) -> None:
        before = kubectl("get", "crd", "-o", "name")
        groups = str(build.place(build.LWS) / DEFINITIONS)
        kubectl("apply", "--server-side", "-f", groups)
        if GROUPS not in before:
            cls.addClassCleanup(kubectl, "delete", "-f", groups)
        definitions = subprocess.run([EXECUTABLE, "crd"], text=True, capture_output=True, check=True).stdout
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=definitions)
        names = [f"crd/{plural}.foretoken.io" for plural, _ in KINDS.values()]
        if not any(plural in before for plural, _ in KINDS.values()):
            cls.addClassCleanup(kubectl, "delete", *names)
        give_up = time.monotonic() + PATIENCE
        # kubectl takes it for an error to wait for conditions where there are none yet.
        while not all(exists(name.removeprefix("crd/")) for name in (GROUPS, *names)):
            if time.monotonic() > give_up:
                raise AssertionError(f"not all of {GROUPS}, {', '.join(names)} are served")
            time.sleep(0.1)
        cls.table = table()
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)

    def test_schemas_are_structural(self) -> None:
        for value in json.loads(kubectl("get", "crd", "-o", "json"))["items"]:
            wrong = [c for c in value["status"]["conditions"] if c["type"] == "NonStructuralSchema" and c["status"] == "True"]
            if value["spec"]["group"] == "foretoken.io":
                self.assertEqual(wrong, [], value["metadata"]["name"])

    def test_every_object_of_the_table_has_its_verdict_for_its_reason(self) -> None:
        self.assertGreater(len(self.table), 100)
        for value in self.table:
            expected = {key.removeprefix(EXPECTED): said for key, said in value["metadata"]["annotations"].items()}
            refusal = self.server.refusal(value)
            with self.subTest(name=value["metadata"]["name"], refusal=refusal):
                self.assertEqual("Refused" if refusal else "Accepted", expected["verdict"])
                self.assertIn(expected.get("field", ""), refusal)
                self.assertIn(expected.get("says", ""), refusal)

    def test_spoilt_objects_have_one_verdict(self) -> None:
        inner = [place for value in self.table for place in places(value.get("spec"))]
        values = [within[key] for within, key in inner]
        names = sorted({key for _, key in inner if isinstance(key, str)})
        accepted = 0
        for seed in range(SPOILT):
            chance = random.Random(seed)
            value = spoil(chance.choice(self.table), values, names, chance)
            here, there = offline(value), self.server.refusal(value)
            accepted += not here
            with self.subTest(seed=seed, here=here, there=there, value=value):
                self.assertEqual(bool(here), bool(there))
        # Both verdicts, or nothing was compared.
        self.assertGreater(accepted, SPOILT // 50)
        self.assertLess(accepted, SPOILT)

    def test_what_the_operator_makes_is_taken_as_it_is(self) -> None:
        files = [file for file in sorted(BUILT.glob("*.yaml")) if not file.name.endswith(".in.yaml")]
        kinds = set()
        for file in files:
            objects = built(file)
            kinds |= {value["kind"] for value in objects}
            text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
            with self.subTest(file=file.name):
                how = ("--server-side", "--dry-run=server", "--validate=strict", "-o", "json")
                taken = answered(kubectl("apply", *how, "-f", "-", stdin=text))
                self.assertEqual(len(taken), len(objects))
                for value, found in zip(objects, taken):
                    self.assertEqual(lost(value, found), [], f"{value['kind']} {value['metadata']['name']}")
        # Devices of all sorts, and groups, were among them.
        self.assertLessEqual({"ResourceClaimTemplate", "LeaderWorkerSet", "Role", "SpeculationEndpoint"}, kinds)

    def test_a_deployment_is_scaled_and_seen_at_a_glance(self) -> None:
        value = next(value for value in self.table if value["metadata"]["name"] == "everything")
        kubectl("apply", "--namespace=default", "-f", "-", stdin=json.dumps(value))
        self.addCleanup(kubectl, "delete", "sdd", "everything", "--namespace=default")
        kubectl("scale", "sdd/everything", "--replicas=3", "--namespace=default")
        self.assertEqual(kubectl("get", "sdd", "everything", "--namespace=default", "-o", "jsonpath={.spec.target.replicas}"), "3")
        seen = kubectl("get", "foretoken", "--namespace=default").splitlines()
        self.assertEqual(re.split(r"\s{2,}", seen[0].strip())[1:], ["POLICY", "TARGETS", "SPECULATION", "ACCLEN", "READY", "AGE"])
        self.assertIn("SSD", seen[1])


if __name__ == "__main__":
    unittest.main()
