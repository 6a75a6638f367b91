"""Foretoken on the cluster, as a user has it: the chart, and the example of one pool that two namespaces share."""

from __future__ import annotations

import atexit
import functools
import hashlib
import sys
import tempfile
import unittest
from pathlib import Path

import cluster
import layout
import where
from layout import STATE
from where import kubectl

sys.path.insert(0, str(layout.REPOSITORY / "image"))
import image
import oci

CHART = layout.REPOSITORY / "charts" / "foretoken"
EXAMPLE = layout.REPOSITORY / "examples" / "shared-endpoint.yaml"
RELEASE = "foretoken"
NAMESPACE = "foretoken"
IMAGE = "foretoken:dev"
MODELS = ("target", "draft")
# Namespaces of the example: of the pool, and of those that share it.
POOL = "drafts"
SHARING = ("chat", "tales")
# Pods of the example become ready within seconds; a busy machine may take longer to start them.
PATIENCE = "180s"


def up(folder: Path) -> None:
    """Starts the cluster unless it runs, and foretoken on it, with the images that lie in a folder."""
    archives = archives_in(folder)
    absent = [str(archive) for archive in archives.values() if not archive.exists()]
    if absent:
        raise cluster.ClusterError(f"there is no {', '.join(absent)}: `make image` makes it")
    cluster.up(["helm"])
    install(archives)
    apply()
    print(explained())


def archives_in(folder: Path) -> dict[str, Path]:
    """Where in a folder the images are, by name: of foretoken and of the shipped models."""
    return {IMAGE: folder / "foretoken.tar"} | {f"story-{model}:dev": folder / f"story-{model}.tar" for model in MODELS}


def make(executable: Path, folder: Path) -> dict[str, Path]:
    """Makes the images, of an executable that is there and the shipped models."""
    archives = archives_in(folder)
    image.foretoken(where.image(IMAGE), executable, image.CERTIFICATES, archives[IMAGE])
    for model in MODELS:
        name = f"story-{model}:dev"
        image.model(where.image(name), layout.REPOSITORY / "models" / model, archives[name])
    return archives


@functools.cache
def made() -> dict[str, Path]:
    """The images of the executable that is to be tested, made once for all tests; where, by name."""
    folder = tempfile.TemporaryDirectory(prefix="foretoken-images-")
    atexit.register(folder.cleanup)
    return make(Path(where.EXECUTABLE), Path(folder.name))


def install(archives: dict[str, Path], *more: str) -> None:
    """Gives the node the images, and the cluster the chart; what runs an older image is rolled."""
    for archive in archives.values():
        cluster.load(archive)
    # Another image is another name: a node never looks twice at one that it has.
    tag = f"dev-{hashlib.sha256(archives[IMAGE].read_bytes()).hexdigest()[:12]}"
    name_again(tag)
    install_chart(tag, *more)


def install_chart(tag: str, *more: str) -> None:
    """Gives the cluster the chart, with an image that nodes have or can pull."""
    repository = where.image(IMAGE).rpartition(":")[0]
    values = [f"--set=image.repository={repository},image.tag={tag},image.pullPolicy=IfNotPresent", *more]
    place = [f"--namespace={NAMESPACE}", "--create-namespace"]
    where.helm("upgrade", "--install", RELEASE, str(CHART), *place, "--wait", f"--timeout={PATIENCE}", *values)


def uninstall() -> None:
    """Takes the chart away again."""
    where.helm("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--wait")


def installed_for(tests: type[unittest.TestCase], *values: str) -> None:
    """Has the chart there while some tests run, of the executable that is to be tested."""
    if where.EXISTING:
        install_chart(IMAGE.rpartition(":")[2], *values)
    else:
        install(made(), *values)
    tests.addClassCleanup(uninstall)


def claim(tests: type[unittest.TestCase]) -> None:
    """Refuses to touch what somebody has in their cluster, and has nothing stay there that `tests` made."""
    if not where.EXISTING:
        return
    names = [f"namespace/{name}" for name in (NAMESPACE, POOL, *SHARING)]
    found = kubectl("get", "--ignore-not-found", "-o", "name", *names).split()
    found += [kind for kind in kubectl("get", "crd", "-o", "name").split() if kind.endswith(".foretoken.io")]
    if found:
        raise cluster.ClusterError(f"the cluster has {', '.join(found)}: these tests make and remove them; use a cluster without")
    remains = ("namespace", NAMESPACE, "--ignore-not-found")
    definitions = ("crd", "-l", "app.kubernetes.io/part-of=foretoken")
    for leftover in (remains, definitions):
        tests.addClassCleanup(kubectl, "delete", *leftover, f"--timeout={PATIENCE}")


def upgrade(tag: str) -> None:
    """Gives the operator, and so all pods, another image: the same under another name, which says as much to a node."""
    name_again(tag)
    change(f"image.tag={tag}")


def name_again(tag: str) -> None:
    """Gives the image that nodes have another tag."""
    name = oci.reference(IMAGE)
    cluster.ctr("images", "tag", "--force", name, f"{name.rpartition(':')[0]}:{tag}")


def set_operators(count: int) -> None:
    """Has so many operators, of which one works."""
    change(f"replicas={count}")


def change(value: str) -> None:
    """Gives the chart one other value."""
    values = ["--reuse-values", f"--set={value}"]
    where.helm("upgrade", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--wait", f"--timeout={PATIENCE}", *values)


def apply() -> None:
    """Applies the example and waits until all of it can serve, the pool first: without it, the first words come slower."""
    kubectl("apply", "--server-side", "-f", "-", stdin=example())
    ready("speculationendpoint", POOL)
    for namespace in SHARING:
        ready("specdecodedeployment", namespace)


def example() -> str:
    """The example, with the images that the cluster has."""
    return where.there(EXAMPLE.read_text())


def document(kind: str, namespace: str) -> str:
    """The example's object of a kind in a namespace."""
    wanted = (f"kind: {kind}\n", f"namespace: {namespace}\nspec:")
    return next(text for text in example().split("---\n") if all(part in text for part in wanted))


def ready(kind: str, namespace: str) -> None:
    """Waits until the example's object of a kind says that it serves."""
    kubectl("wait", f"--namespace={namespace}", f"{kind}/story", "--for=condition=Ready", f"--timeout={PATIENCE}")


def explained() -> str:
    """What there is, and what to do with it."""
    body = '{"model": "story-10m", "prompt": "Question: Tom has 3 apples.", "max_tokens": 64}'
    asked = [f"  curl {where.router(namespace)}/v1/completions -H 'Content-Type: application/json' \\\n    -d '{body}'\n" for namespace in SHARING]
    seen = kubectl("get", "sdd,spe", "-A").rstrip()
    point = f"  export KUBECONFIG={STATE.kubeconfig}\n  export PATH={STATE.programs}:$PATH\n  kubectl get pods -A\n"
    return f"\n{seen}\n\n" + "\n".join([*asked, point])
