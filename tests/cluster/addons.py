"""What a cluster can have beyond pods: built and installed when asked for, each from its publisher's own chart."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import build
from build import Module


@dataclass(frozen=True)
class Release:
    """One chart to install."""

    name: str
    chart: str
    namespace: str
    values: list[str] = field(default_factory=list)
    # Of a chart with more than is built here: what of it is applied, without a release.
    templates: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Addon:
    """What is built, and what of it is installed by Helm's charts, in this order."""

    modules: list[Module]
    # Folders of definitions that charts leave to their users.
    definitions: list[str] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)


def _image(prefix: str, image: str) -> list[str]:
    repository, _, tag = image.rpartition(":")
    return [f"{prefix}.repository={repository}", f"{prefix}.tag={tag}", f"{prefix}.pullPolicy=Never"]


ADDONS = {
    "helm": Addon([build.HELM]),
    # Groups of pods that live and die together.
    "lws": Addon(
        [build.HELM, build.LWS],
        releases=[
            Release(
                "lws",
                "charts/lws",
                "lws-system",
                [*_image("image.manager", build.LWS.image), "resources.requests.cpu=50m", "resources.requests.memory=64Mi"],
            )
        ],
    ),
    # Nodes and pods that are only said to be: for scale.
    "kwok": Addon(
        [build.HELM, build.KWOK],
        definitions=["kustomize/crd/bases"],
        releases=[
            Release("kwok", "charts/kwok", "kube-system", _image("image", build.KWOK.image)),
            Release("kwok-stages", "charts/stage-fast", "kube-system"),
        ],
    ),
    # Certificates from an authority whose key is in the cluster. Nobody is there to answer its chart's webhooks.
    "cert-manager": Addon(
        [build.HELM, build.CERT_MANAGER],
        definitions=["deploy/crds"],
        releases=[
            Release(
                "cert-manager",
                "deploy/charts/cert-manager",
                "cert-manager",
                _image("image", build.CERT_MANAGER.image),
                [f"templates/{name}.yaml" for name in ("serviceaccount", "rbac", "deployment")],
            )
        ],
    ),
}


def modules(names: list[str]) -> list[Module]:
    """What is to be built for these, each once."""
    found: list[Module] = []
    for name in names:
        found += [module for module in ADDONS[name].modules if module not in found]
    return found


def kept(name: str, folder: str) -> Path:
    """Where a folder of one of an addon's published modules is."""
    owner = next(module for module in ADDONS[name].modules if folder in module.folders)
    return build.place(owner) / folder


def commands(name: str) -> list[list[str]]:
    """Helm's arguments that install one, or leave it as it is; of a release with templates, that print them."""
    found = []
    for release in ADDONS[name].releases:
        values = [part for value in release.values for part in ("--set-string", value)]
        verb, how = ["upgrade", "--install"], ["--create-namespace", "--wait", "--timeout=3m"]
        if release.templates:
            verb, how = ["template"], [f"--show-only={template}" for template in release.templates]
        found.append([*verb, release.name, str(kept(name, release.chart)), f"--namespace={release.namespace}", *how, *values])
    return found
