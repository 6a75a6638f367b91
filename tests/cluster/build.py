"""Builds the cluster's programs from Go modules, each version once, and keeps them outside the work tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import layout

sys.path.insert(0, str(layout.REPOSITORY / "image"))
import oci

# How folders begin in which a build is under way, or was when it was killed.
PARTIAL = ".building-"
# For how many seconds a version is kept that nobody has asked for.
KEPT = 7 * 24 * 3600
_VERSION = "k8s.io/component-base/version.git"


@dataclass(frozen=True)
class Module:
    """A folder of `go/` with its own go.mod and go.sum, and what is built from it."""

    name: str
    # Packages by the name of their executable; without any, the folder's own under the module's name.
    packages: dict[str, str] = field(default_factory=dict)
    # Names under which the first executable is called too.
    links: list[str] = field(default_factory=list)
    tags: str = ""
    # Of variables to set at link time; without these, clients take the server for v0.0.0.
    definitions: dict[str, str] = field(default_factory=dict)
    # The image whose pods run the first executable, and with which arguments.
    image: str = ""
    arguments: list[str] = field(default_factory=list)
    # Folders to keep of the published module that the executables come from: its charts, its CRDs.
    folders: list[str] = field(default_factory=list)
    folders_of: str = ""
    # Packages that have tests.
    tests: tuple[str, ...] = ()

    @property
    def executables(self) -> dict[str, str]:
        """Packages by the name of their executable."""
        return self.packages or {self.name: "."}


# To compile takes a third less without inlining and what debuggers read; the tests mostly wait.
COMPILED = ["-gcflags", "all=-dwarf=false -l"]
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
KUBERNETES_PROGRAMS = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
    "network-policies",
    "credentials",
]
KUBERNETES = Module(
    "kubernetes",
    links=KUBERNETES_PROGRAMS,
    definitions={f"{_VERSION}Version": "v1.36.3", f"{_VERSION}Major": "1", f"{_VERSION}Minor": "36"},
    tests=("./policies",),
)
POD = Module("pod", image=layout.POD_IMAGE, arguments=["pause"])
ALWAYS = [
    POD,
    Module(
        "containerd",
        packages={name: f"{_CONTAINERD}/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        tags="no_btrfs no_zfs no_devmapper no_tracing",
    ),
    Module("coredns", image=layout.DNS_IMAGE),
    KUBERNETES,
]
HELM = Module("helm", packages={"helm": "helm.sh/helm/v4/cmd/helm"})
LWS = Module(
    "lws",
    packages={"manager": "sigs.k8s.io/lws/cmd"},
    image=layout.LWS_IMAGE,
    folders=["charts/lws"],
    folders_of="sigs.k8s.io/lws",
)
CERT_MANAGER = Module(
    "cert-manager",
    image=layout.CERT_MANAGER_IMAGE,
    folders=["deploy/crds", "deploy/charts/cert-manager"],
    folders_of="github.com/cert-manager/cert-manager",
)
# What takes traces in, and what reads rules, as their users have them.
TELEMETRY = Module("telemetry", packages={"collector": "./collector", "rules": "./rules"}, tests=("./rules",))
KWOK = Module(
    "kwok",
    packages={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    image=layout.KWOK_IMAGE,
    folders=["kustomize/crd/bases", "charts/kwok", "charts/stage-fast"],
    folders_of="sigs.k8s.io/kwok",
)


class BuildError(Exception):
    """A module could not be built."""


class UnreachableError(BuildError):
    """A module needs others that cannot be fetched."""


def place(module: Module) -> Path:
    """Where a module's executables are kept: a folder named after everything that decides what they are."""
    digest = hashlib.sha256()
    folder = layout.MODULES / module.name
    sources = [file for file in sorted(folder.rglob("*.go")) if not file.name.endswith("_test.go")]
    for file in [*sources, folder / "go.mod", folder / "go.sum"]:
        if file.exists():
            digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update(repr((module, os.uname().machine)).encode())
    return layout.cache_folder() / f"{module.name}-{digest.hexdigest()[:16]}"


def missing(modules: list[Module]) -> list[Module]:
    """What has not been built in its present version."""
    return [module for module in modules if not place(module).exists()]


def build(module: Module, go: str) -> Path:
    """Builds a module unless it is there; answers its folder."""
    folder = place(module)
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    print(f"building {module.name} (once)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=PARTIAL) as partial:
        _compile(module, go, Path(partial))
        for link in module.links:
            (Path(partial) / link).symlink_to(next(iter(module.executables)))
        if module.image:
            _image(module, Path(partial))
        Path(partial).rename(folder)
        # `TemporaryDirectory` expects to find what it removes.
        Path(partial).mkdir()
    # Another work tree may have other versions, and use them.
    for old in folder.parent.glob(f"{module.name}-*"):
        if time.time() - old.stat().st_mtime > KEPT:
            shutil.rmtree(old)
    print(f"built {module.name} in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return folder


def _compile(module: Module, go: str, output: Path) -> None:
    definitions = " ".join(f"-X {name}={value}" for name, value in module.definitions.items())
    flags = ["-trimpath", "-mod=readonly", *COMPILED, "-ldflags", f"-s -w {definitions}", "-tags", module.tags]
    for name, package in module.executables.items():
        _go(module, [go, "build", *flags, "-o", str(output / name), package])
    if module.folders:
        published = Path(_go(module, [go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module.folders_of]).strip())
        for folder in module.folders:
            shutil.copytree(published / folder, output / folder, copy_function=shutil.copy)


def test(module: Module, go: str) -> bool:
    """Runs a module's own tests."""
    environment = _environment()
    # Once more each time: Go does not see that what they read outside of their module has changed.
    command = [go, "test", "-trimpath", "-mod=readonly", *COMPILED, "-count=1", *module.tests]
    return subprocess.run(command, cwd=layout.MODULES / module.name, env=environment, check=False).returncode == 0


def _go(module: Module, command: list[str]) -> str:
    environment = _environment()
    folder = layout.MODULES / module.name
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    fetched = subprocess.run([command[0], "mod", "download"], cwd=folder, env=environment, stderr=subprocess.DEVNULL, check=False)
    if fetched.returncode != 0:
        raise UnreachableError(f"the Go modules that {folder} names cannot be fetched")
    raise BuildError(f"`{' '.join(command)}` failed in {folder}")


def _environment() -> dict[str, str]:
    # Without C, executables need nothing of the image that they run in. A Go that is too old fetches a newer one.
    return os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "auto"}


def _image(module: Module, folder: Path) -> None:
    name = next(iter(module.executables))
    with tempfile.TemporaryDirectory() as root:
        shutil.copy2(folder / name, Path(root) / name)
        image = oci.Image(module.image, entrypoint=[f"/{name}"], arguments=module.arguments)
        oci.write(folder / "image.tar", image, [oci.layer(Path(root))])
