"""Traces as the OpenTelemetry collector gets them, and rules as Prometheus reads them: `make telemetry-test`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path
from typing import Iterator

import api
import layout

sys.path.insert(0, str(layout.REPOSITORY / "tests" / "clients"))
import with_server

EXECUTABLE = os.environ.get("FORETOKEN_EXECUTABLE", str(layout.REPOSITORY / "target" / "debug" / "foretoken"))
PROGRAMS = Path(os.environ.get("FORETOKEN_TELEMETRY_PROGRAMS", "."))
PATIENCE = 60.0
CALLER = "00f067aa0ba902b7"
SERVICES = {"foretoken-router", "foretoken-target", "foretoken-draft"}
# The last span of each.
LAST = {
    ("foretoken-router", "POST /v1/completions"),
    ("foretoken-target", "generate"),
    ("foretoken-draft", "draft"),
}


# Every request has an endpoint, whatever pays.
MANIFEST = f"""
apiVersion: foretoken.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {{name: story}}
spec:
  model: {{uri: "file://{layout.REPOSITORY}/models/target"}}
  speculation:
    policy: {{type: SSD, ssd: {{lookahead: 5, adaptive: false}}}}
    endpoints: [{{template: {{model: {{uri: "file://{layout.REPOSITORY}/models/draft"}}}}}}]
"""


class Collector:
    """The collector, with a file of what it was sent."""

    def __init__(self, folder: Path, port: int) -> None:
        self.traces = folder / "traces.json"
        # JSON is YAML.
        configuration = json.dumps(
            {
                "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{port}"}}}},
                "exporters": {"file": {"path": str(self.traces), "append": True}},
                "service": {
                    "telemetry": {"metrics": {"level": "none"}},
                    "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
                },
            }
        )
        self.log = (folder / "collector.log").open("ab")
        command = [str(PROGRAMS / "collector"), f"--config=yaml:{configuration}"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def stop(self) -> None:
        """Kills it, as a lost node would."""
        self.process.kill()
        self.process.wait()
        self.log.close()

    def spans(self, trace: str) -> list[tuple[str, dict]]:
        """The spans of a trace so far, each with its service."""
        text = self.traces.read_text() if self.traces.exists() else ""
        # The last line may not be whole yet.
        batches = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [
            (attributes(of["resource"])["service.name"], span)
            for batch in batches
            for of in batch["resourceSpans"]
            for scope in of["scopeSpans"]
            for span in scope["spans"]
            if span["traceId"] == trace
        ]


def attributes(holder: dict) -> dict[str, object]:
    """Attributes by name; numbers come as texts."""
    return {one["key"]: next(iter(one["value"].values())) for one in holder.get("attributes", [])}


def complete(url: str, trace: str) -> dict:
    """A completion in a trace."""
    body = {"prompt": "Once upon a time", "max_tokens": 32, "seed": 3, "temperature": 0.7}
    headers = {"Content-Type": "application/json", "traceparent": f"00-{trace}-{CALLER}-01"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Variables that processes started meanwhile see."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Traces(unittest.TestCase):
    def wait(self, collector: Collector, trace: str) -> list[tuple[str, dict]]:
        """The spans of a trace, once all services have told theirs."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            spans = collector.spans(trace)
            ended = {(service, span["name"]) for service, span in spans}
            if LAST <= ended:
                return spans
            time.sleep(0.1)
        self.fail(f"the trace is not whole: {sorted((service, span['name']) for service, span in collector.spans(trace))}")

    def test_the_collector_gets_one_trace_a_request_and_its_death_is_not_noticed(self) -> None:
        [port] = api.free_ports(1)
        traces = [f"{number:032x}" for number in (1, 2, 3)]
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            manifest = folder / "story.yaml"
            manifest.write_text(MANIFEST)
            stack.enter_context(environment(**variables))
            url = stack.enter_context(with_server.server(EXECUTABLE, manifest))
            collector = Collector(folder, port)
            try:
                answer = self.until_heard(url, collector)
                usage = complete(url, traces[0])["usage"]["foretoken"]
                spans = self.wait(collector, traces[0])
            finally:
                collector.stop()
            self.check(spans, usage)
            away = complete(url, traces[1])
            self.assertEqual(away["choices"][0]["text"], answer["choices"][0]["text"])
            collector = Collector(folder, port)
            try:
                self.until_heard(url, collector)
                complete(url, traces[2])
                self.wait(collector, traces[2])
            finally:
                collector.stop()

    def until_heard(self, url: str, collector: Collector) -> dict:
        """Asks until the collector has heard of it from all, as it takes a moment to start; the answer."""
        give_up = time.monotonic() + PATIENCE
        while True:
            trace = f"{time.monotonic_ns():032x}"
            answer = complete(url, trace)
            time.sleep(0.5)
            if {service for service, _ in collector.spans(trace)} == SERVICES:
                return answer
            self.assertLess(time.monotonic(), give_up, "the collector hears nothing")

    def check(self, spans: list[tuple[str, dict]], usage: dict) -> None:
        """The tree, and that its rounds add up to what the answer said."""
        by_id = {span["spanId"]: (service, span) for service, span in spans}
        parents = {(s, span["name"]): by_id.get(span["parentSpanId"], ("caller", {"name": ""})) for s, span in spans}
        above = {key: (service, span["name"]) for key, (service, span) in parents.items()}
        self.assertEqual(above[("foretoken-router", "POST /v1/completions")], ("caller", ""))
        self.assertEqual(above[("foretoken-router", "generate")], ("foretoken-router", "POST /v1/completions"))
        self.assertEqual(above[("foretoken-target", "generate")], ("foretoken-router", "generate"))
        self.assertEqual(above[("foretoken-target", "round")], ("foretoken-target", "generate"))
        self.assertEqual(above[("foretoken-draft", "draft")], ("foretoken-target", "generate"))
        ends = [attributes(span) for _, span in spans if span["name"] == "generate"]
        for end in ends:
            [reason] = end["gen_ai.response.finish_reasons"]["values"]
            self.assertIn(reason["stringValue"], ("stop", "length"))
        rounds = [attributes(span) for _, span in spans if span["name"] == "round"]
        self.assertEqual(len(rounds), usage["rounds"])
        for name, field in (("drafted_tokens", "drafted"), ("accepted_tokens", "accepted")):
            self.assertEqual(sum(int(one[f"foretoken.{name}"]) for one in rounds), usage[field])


class Rules(unittest.TestCase):
    RULES = layout.REPOSITORY / "charts" / "foretoken" / "monitoring" / "rules.yaml"

    def verdict(self, path: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(PROGRAMS / "rules"), str(path)], capture_output=True, text=True, check=False)

    def test_prometheus_reads_the_rules(self) -> None:
        self.assertEqual(self.verdict(self.RULES).stderr, "")

    def test_a_rule_that_prometheus_cannot_read_is_found(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            spoilt = Path(folder, "rules.yaml")
            spoilt.write_text(self.RULES.read_text().replace("sum by (", "sum by ((", 1))
            self.assertNotEqual(self.verdict(spoilt).returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
