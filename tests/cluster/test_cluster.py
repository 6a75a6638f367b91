"""What can be checked of the cluster without starting it: `python3 -m unittest discover tests/cluster`."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import re
import sys
import tarfile
import tempfile
import threading
import time
import unittest
from ipaddress import ip_address
from pathlib import Path
from unittest import mock

import addons
import build
import cluster
import command_line
import image
import layout
import machine
import network
import node
import oci
import programs
from layout import State


class Folder(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)


class Programs(unittest.TestCase):
    state = State(Path("/state"))

    def test_every_program_is_one_that_is_built(self) -> None:
        built = {"containerd", *build.KUBERNETES_PROGRAMS}
        self.assertLessEqual({program.name for program in programs.programs(self.state)}, built)

    def test_every_file_that_a_program_is_told_to_read_lies_in_the_state_folder(self) -> None:
        for program in programs.programs(self.state):
            for argument in program.arguments:
                value = argument.partition("=")[2]
                if value.startswith("/") and "/" in value[1:]:
                    self.assertTrue(value.startswith("/state/"), argument)

    def test_configuration_files_can_be_parsed(self) -> None:
        files = programs.files(self.state, "/usr/sbin/runc", ["/usr/lib/cni"], "overlayfs")
        for path, content in files.items():
            if path.suffix in (".json", ".conflist"):
                json.loads(content)
        if sys.version_info >= (3, 11):
            import tomllib

            parsed = tomllib.loads(files[Path("/state/etc/containerd.toml")])
            self.assertEqual(parsed["plugins"]["io.containerd.cri.v1.runtime"]["cni"]["bin_dirs"], ["/usr/lib/cni"])

    def test_networks_do_not_overlap_and_hold_their_addresses(self) -> None:
        networks = [layout.LINK, layout.PODS, layout.SERVICES]
        for first in networks:
            self.assertFalse([second for second in networks if first != second and first.overlaps(second)])
        self.assertIn(ip_address(layout.NODE_ADDRESS), layout.LINK)
        self.assertIn(ip_address(layout.DNS_SERVICE), layout.SERVICES)
        self.assertTrue(layout.NODE_PODS.subnet_of(layout.PODS))
        self.assertIn(layout.NODE_ADDRESS, programs.hosts())


class Network(unittest.TestCase):
    def test_a_route_into_the_clusters_networks_is_a_conflict(self) -> None:
        routes = [{"dst": "default"}, {"dst": "192.0.2.0/24", "dev": "eth0"}, {"dst": "10.244.7.0/24", "dev": "cni0"}]
        self.assertEqual(network.conflicts(routes), ["10.244.7.0/24"])
        self.assertEqual(network.conflicts([{"dst": "10.0.0.0/8", "dev": "vpn"}]), ["10.0.0.0/8"])

    def test_the_clusters_own_routes_and_single_addresses_elsewhere_are_none(self) -> None:
        routes = [{"dst": "10.244.0.0/16", "dev": layout.INTERFACE}, {"dst": "127.0.0.1", "dev": "lo"}]
        self.assertEqual(network.conflicts(routes), [])


@unittest.skipUnless(sys.platform == "linux", "the cluster runs on Linux")
class Supervision(Folder):
    """Programs that are shell scripts, kept running by a node that is no first process."""

    def node_of(self, scripts: dict[str, str], after: str = "") -> node.Node:
        state = State(self.folder)
        for folder in (state.programs, state.logs, state.data):
            folder.mkdir(parents=True)
        for name, script in scripts.items():
            (state.programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (state.programs / name).chmod(0o755)
        made = node.Node(state, [programs.Program(name, [], after) for name in scripts])
        self.addCleanup(made.stop)
        return made

    def until(self, made: node.Node, condition) -> None:
        give_up = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), give_up, "did not happen")
            made.step(time.monotonic())
            time.sleep(0.01)

    def test_a_program_that_ends_is_started_again(self) -> None:
        made = self.node_of({"brief": "echo ran; exit 3"})
        self.until(made, lambda: made.children["brief"].starts == 2)
        self.assertIn("ran\n", (self.folder / "log" / "brief.log").read_text())

    def test_a_killed_program_comes_back_and_a_stopped_one_does_not(self) -> None:
        made = self.node_of({"server": "exec sleep 1000"})
        child = made.children["server"]
        self.until(made, lambda: child.pid)
        made.command({"do": "kill", "program": "server"})
        self.until(made, lambda: child.pid and child.starts == 2)
        made.command({"do": "stop", "program": "server"})
        self.until(made, lambda: child.pid is None)
        made.step(time.monotonic() + 100)
        self.assertEqual((child.pid, child.starts), (None, 2))
        made.command({"do": "start", "program": "server"})
        self.until(made, lambda: child.starts == 3)

    def test_a_program_that_keeps_failing_is_started_less_and_less_often(self) -> None:
        made = self.node_of({"broken": "exit 1"})
        child = made.children["broken"]
        delays = []
        for _ in range(3):
            child.due = 0
            self.until(made, lambda: child.pid)
            self.until(made, lambda: child.pid is None)
            delays.append(child.delay)
        self.assertEqual(delays, sorted(set(delays)))

    def test_what_ignores_a_request_to_end_is_ended(self) -> None:
        made = self.node_of({"deaf": "trap '' TERM; while :; do sleep 1; done"})
        child = made.children["deaf"]
        self.until(made, lambda: child.pid)
        time.sleep(0.2)
        pid = child.pid
        made.stop(grace=0.1)
        self.assertIsNone(child.pid)
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)

    def test_a_program_waits_for_what_it_needs(self) -> None:
        class Answer(http.server.BaseHTTPRequestHandler):
            status = 500

            def do_GET(self) -> None:
                self.send_response(self.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = self.node_of({"server": "exec sleep 1000"}, after=f"http://127.0.0.1:{server.server_port}/readyz")
        made.step(time.monotonic())
        self.assertIsNone(made.children["server"].pid)
        Answer.status = 200
        self.until(made, lambda: made.children["server"].pid)

    def test_unknown_commands_are_answered_with_what_there_is(self) -> None:
        made = self.node_of({"server": "exec sleep 1000"})
        self.assertIn("server", made.command({"do": "stop", "program": "sever"})["error"])
        self.assertIn("status", made.command({"do": "dance", "program": "server"})["error"])
        self.assertEqual(made.command({"do": "status"})["programs"][0]["name"], "server")


@unittest.skipUnless(sys.platform == "linux", "the cluster runs on Linux")
class Liveness(Folder):
    def test_another_process_of_the_same_number_is_not_the_node(self) -> None:
        state = State(self.folder)
        start = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        with mock.patch.object(cluster, "STATE", state):
            self.assertIsNone(cluster.node())
            state.node.write_text(json.dumps({"pid": os.getpid(), "start": start}))
            self.assertEqual(cluster.node(), os.getpid())
            state.node.write_text(json.dumps({"pid": os.getpid(), "start": start - 1}))
            self.assertIsNone(cluster.node())
            state.node.write_text("{")
            self.assertIsNone(cluster.node())

    def test_linking_tells_which_programs_are_not_those_that_run(self) -> None:
        state = State(self.folder)
        state.programs.mkdir()
        for version in ("old", "new"):
            (self.folder / version).mkdir()
            (self.folder / version / "kubectl").touch()
        (self.folder / "old" / "image.tar").touch()
        self.assertEqual(layout.link(state.programs, {"kubernetes": self.folder / "old"}), [])
        self.assertEqual(layout.link(state.programs, {"kubernetes": self.folder / "old"}), [])
        self.assertEqual(layout.link(state.programs, {"kubernetes": self.folder / "new"}), ["kubectl"])
        self.assertEqual((state.programs / "kubectl").readlink(), self.folder / "new" / "kubectl")
        self.assertEqual([path.name for path in state.programs.iterdir()], ["kubectl"])

    def test_a_tree_of_cgroups_is_removed_from_its_leaves(self) -> None:
        root = self.folder / "cgroup"
        (root / "kubepods" / "pod").mkdir(parents=True)
        self.assertTrue(cluster._remove_cgroup(root))
        self.assertFalse(root.exists())


class Builds(Folder):
    def test_a_module_is_built_again_when_its_sources_or_versions_change_only(self) -> None:
        module = build.Module("pod")
        folder = self.folder / "pod"
        folder.mkdir()
        (folder / "main.go").write_text("package main")
        (folder / "go.mod").write_text("module pod")
        with mock.patch.object(layout, "MODULES", self.folder):
            first = build.place(module)
            (folder / "README.md").write_text("what it is")
            (folder / "main_test.go").write_text("package main")
            self.assertEqual(build.place(module), first)
            (folder / "go.sum").write_text("a h1:b")
            second = build.place(module)
            self.assertNotEqual(second, first)
            (folder / "part").mkdir()
            (folder / "part" / "part.go").write_text("package part")
            self.assertNotEqual(build.place(module), second)
            second = build.place(module)
            self.assertNotEqual(build.place(build.Module("pod", tags="other")), second)

    def test_versions_that_others_may_use_are_kept_and_old_ones_are_not(self) -> None:
        with mock.patch.object(layout, "cache_folder", lambda: self.folder), mock.patch.object(build, "_compile"):
            recent, old = self.folder / "made-recent", self.folder / "made-old"
            for folder in (recent, old):
                folder.mkdir()
            os.utime(old, (0, time.time() - build.KEPT - 10))
            module = build.Module("made", links=["link"])
            with mock.patch.object(build, "place", lambda _: self.folder / "made-new"), mock.patch("builtins.print"):
                made = build.build(module, "go")
            self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["made-new", "made-recent"])
            self.assertTrue((made / "link").is_symlink())

    def test_every_module_pins_what_it_needs(self) -> None:
        for module in [*build.ALWAYS, build.HELM, build.LWS, build.KWOK]:
            folder = layout.MODULES / module.name
            if "require" in (folder / "go.mod").read_text():
                self.assertTrue((folder / "go.sum").exists(), module.name)


    def test_what_several_modules_need_is_compiled_once(self) -> None:
        needed: dict[str, set[str]] = {}
        for file in layout.MODULES.glob("*/go.mod"):
            required, _, replaced = file.read_text().partition("\nreplace (")
            # What is replaced is not what is required.
            elsewhere = set(re.findall(r"^\t(\S+) =>", replaced, re.MULTILINE))
            for path, version in re.findall(r"^\t(\S+) (v\S+)", required, re.MULTILINE):
                if path not in elsewhere:
                    needed.setdefault(path, set()).add(version)
        self.assertGreater(len(needed), 100)
        self.assertEqual({path: versions for path, versions in needed.items() if len(versions) > 1}, {})


class Arguments(unittest.TestCase):
    def test_the_arguments_of_another_command_are_passed_on_as_they_are(self) -> None:
        words = ["cargo", "test", "--with", "x", "--", "--nocapture", "-h"]
        for verb in ("run", "api", "kubectl"):
            self.assertEqual(command_line.arguments([verb, *words]).rest, words)

    def test_addons_are_named_after_up_and_test(self) -> None:
        self.assertEqual(command_line.arguments(["up", "--with", "lws,kwok"]).names, "lws,kwok")
        self.assertEqual(command_line.arguments(["test"]).names, "")
        self.assertEqual(command_line.named("lws,kwok"), ["lws", "kwok"])
        with self.assertRaisesRegex(cluster.ClusterError, "there is no lsw"):
            command_line.named("lsw")


class Impossible(unittest.TestCase):
    """Tests that cannot be run are never taken for tests that passed."""

    def outcome(self, mode: str, run) -> tuple[int, str]:
        said = io.StringIO()
        with mock.patch.dict(os.environ, {"FORETOKEN_TEST_CLUSTER": mode}), mock.patch("sys.stderr", said):
            return command_line.unless_impossible(run), said.getvalue()

    def test_what_is_missing_is_said_loudly_and_is_a_failure_where_tests_are_required(self) -> None:
        def missing() -> int:
            raise cluster.MissingError([machine.Missing("root", "run as root")])

        for mode, expected in (("", 0), ("required", command_line.UNAVAILABLE)):
            status, said = self.outcome(mode, missing)
            self.assertEqual(status, expected)
            self.assertIn("root: run as root", said)
            self.assertIn("NOT RUN", said)

    def test_what_failed_is_a_failure_everywhere(self) -> None:
        self.assertEqual(self.outcome("", lambda: 1), (1, ""))

        def broken() -> int:
            raise build.BuildError("does not compile")

        with self.assertRaises(build.BuildError):
            self.outcome("", broken)

    def test_a_mode_that_does_not_exist_is_a_mistake(self) -> None:
        with self.assertRaisesRegex(cluster.ClusterError, "existing or required"):
            self.outcome("exisiting", lambda: 0)


class Addons(unittest.TestCase):
    def test_every_chart_is_of_a_module_that_is_built_for_it(self) -> None:
        for name in addons.ADDONS:
            for release, command in zip(addons.ADDONS[name].releases, addons.commands(name)):
                self.assertIn(str(addons.kept(name, release.chart)), command)

    def test_what_two_addons_need_is_built_once(self) -> None:
        self.assertEqual(addons.modules(["lws", "kwok"]), [build.HELM, build.LWS, build.KWOK])


@unittest.skipUnless(sys.platform == "linux", "the cluster runs on Linux")
class Machine(unittest.TestCase):
    def test_each_missing_command_is_named_with_its_package(self) -> None:
        with mock.patch.object(machine, "tool", lambda name: None):
            absent = {one.what: one for one in machine.missing()}
        self.assertEqual(absent["runc"].package, "runc")
        self.assertIn("iptables", absent["iptables"].remedy)

    def test_a_container_whose_cgroup_has_processes_cannot_give_its_pods_controllers(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, content in {"type": "domain", "subtree_control": "", "procs": "17\n", "controllers": "cpu memory"}.items():
                (root / f"cgroup.{name}").write_text(content)
            self.assertEqual(machine.cgroup_roots(root), [root])
            self.assertFalse(machine._delegates(root))
            (root / "cgroup.procs").write_text("")
            self.assertTrue(machine._delegates(root))
            (root / "cgroup.procs").write_text("17\n")
            (root / "cgroup.subtree_control").write_text("cpu memory\n")
            self.assertTrue(machine._delegates(root))

    def test_no_root_is_said(self) -> None:
        with mock.patch("os.geteuid", return_value=1000):
            self.assertIn("root", [one.what for one in machine.missing()])


class Images(Folder):
    def archive(self) -> dict[str, bytes]:
        root = self.folder / "root"
        (root / "bin").mkdir(parents=True, exist_ok=True)
        (root / "bin" / "tool").write_text("a tool")
        (root / "bin" / "tool").chmod(0o700)
        (root / "text").write_text("a text")
        (root / "text").chmod(0o600)
        image = oci.Image("example.test/tool:1", entrypoint=["/bin/tool"], environment={"A": "b"})
        oci.write(self.folder / "image.tar", image, [oci.layer(root)])
        with tarfile.open(self.folder / "image.tar") as archive:
            return {member.name: archive.extractfile(member).read() for member in archive}

    def test_every_blob_has_the_digest_that_names_it_and_is_reached_from_the_index(self) -> None:
        files = self.archive()
        for name, content in files.items():
            if name.startswith("blobs/"):
                self.assertEqual(name.rpartition("/")[2], hashlib.sha256(content).hexdigest())

        def blob(descriptor: dict) -> bytes:
            content = files["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
            self.assertEqual(len(content), descriptor["size"])
            return content

        entry = json.loads(files["index.json"])["manifests"][0]
        self.assertEqual(entry["annotations"]["io.containerd.image.name"], "example.test/tool:1")
        manifest = json.loads(blob(entry))
        configuration = json.loads(blob(manifest["config"]))
        self.assertEqual(configuration["config"]["User"], "65532:65532")
        self.assertEqual(configuration["config"]["Entrypoint"], ["/bin/tool"])
        layer = blob(manifest["layers"][0])
        with tarfile.open(fileobj=io.BytesIO(layer)) as inner:
            modes = {member.name: (member.mode, member.uid, member.mtime) for member in inner}
        self.assertEqual(modes["bin/tool"], (0o755, 0, 0))
        self.assertEqual(modes["text"], (0o644, 0, 0))

    def test_short_names_are_those_that_kubernetes_looks_for(self) -> None:
        self.assertEqual(oci.reference("foretoken:dev"), "docker.io/library/foretoken:dev")
        self.assertEqual(oci.reference("team/foretoken:dev"), "docker.io/team/foretoken:dev")
        self.assertEqual(oci.reference("registry.test:5000/foretoken"), "registry.test:5000/foretoken")

    def test_the_dockerfile_describes_the_same_image(self) -> None:
        text = (layout.REPOSITORY / "image" / "Dockerfile").read_text()
        described = dict(line.split(" ", 1) for line in text.splitlines() if line.startswith(("ENV ", "USER ", "ENTRYPOINT ")))
        self.assertEqual(json.loads(described["ENTRYPOINT"]), image.ENTRYPOINT)
        self.assertEqual(described["USER"], image.USER)
        self.assertEqual(described["ENV"].split("="), list(*image.ENVIRONMENT.items()))

    def test_the_same_files_give_the_same_bytes(self) -> None:
        self.archive()
        first = (self.folder / "image.tar").read_bytes()
        os.utime(self.folder / "root" / "text", (1, 1))
        self.archive()
        self.assertEqual((self.folder / "image.tar").read_bytes(), first)


if __name__ == "__main__":
    unittest.main()
