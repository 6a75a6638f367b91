"""Foretoken on the cluster, as a user has it: the chart, and the example of one pool that two namespaces share."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import cluster
import layout
from layout import STATE

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
    archives = [folder / "foretoken.tar", *(folder / f"story-{model}.tar" for model in MODELS)]
    absent = [str(archive) for archive in archives if not archive.exists()]
    if absent:
        raise cluster.ClusterError(f"there is no {', '.join(absent)}: `make image` makes it")
    cluster.up(["helm"])
    install(archives)
    apply()
    print(explained())


def make(executable: Path, folder: Path) -> list[Path]:
    """Makes the images, of an executable that is there and the shipped models."""
    archives = [folder / "foretoken.tar", *(folder / f"story-{model}.tar" for model in MODELS)]
    image.foretoken(IMAGE, executable, image.CERTIFICATES, archives[0])
    for model, archive in zip(MODELS, archives[1:]):
        image.model(f"story-{model}:dev", layout.REPOSITORY / "models" / model, archive)
    return archives


def install(archives: list[Path], *more: str) -> None:
    """Gives the node the images, and the cluster the chart; what runs an older image is rolled."""
    for archive in archives:
        cluster.load(archive)
    # Another image is another name: a node never looks twice at one that it has.
    tag = f"dev-{hashlib.sha256(archives[0].read_bytes()).hexdigest()[:12]}"
    name = oci.reference(IMAGE)
    cluster.ctr("images", "tag", "--force", name, f"{name.rpartition(':')[0]}:{tag}")
    values = [f"--set=image.repository={IMAGE.partition(':')[0]},image.tag={tag},image.pullPolicy=IfNotPresent", *more]
    where = [f"--namespace={NAMESPACE}", "--create-namespace"]
    cluster.helm("upgrade", "--install", RELEASE, str(CHART), *where, "--wait", f"--timeout={PATIENCE}", *values)


def upgrade(tag: str) -> None:
    """Gives the operator, and so all pods, another image: the same under another name, which says as much to a node."""
    name = oci.reference(IMAGE)
    cluster.ctr("images", "tag", "--force", name, f"{name.rpartition(':')[0]}:{tag}")
    values = ["--reuse-values", f"--set=image.tag={tag}"]
    cluster.helm("upgrade", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--wait", f"--timeout={PATIENCE}", *values)


def apply() -> None:
    """Applies the example and waits until all of it can serve, the pool first: without it, the first words come slower."""
    cluster.kubectl("apply", "--server-side", "-f", str(EXAMPLE))
    ready("speculationendpoint", POOL)
    for namespace in SHARING:
        ready("specdecodedeployment", namespace)


def ready(kind: str, namespace: str) -> None:
    """Waits until the example's object of a kind says that it serves."""
    cluster.kubectl("wait", f"--namespace={namespace}", f"{kind}/story", "--for=condition=Ready", f"--timeout={PATIENCE}")


def address(namespace: str) -> str:
    """Where the router of one of the deployments listens; reachable from this machine."""
    path = "jsonpath={.spec.clusterIP}"
    return f"http://{cluster.kubectl('get', 'service', 'story-router', f'--namespace={namespace}', '-o', path)}:8000"


def explained() -> str:
    """What there is, and what to do with it."""
    body = '{"model": "story-10m", "prompt": "Question: Tom has 3 apples.", "max_tokens": 64}'
    asked = [f"  curl {address(namespace)}/v1/completions -H 'Content-Type: application/json' \\\n    -d '{body}'\n" for namespace in SHARING]
    seen = cluster.kubectl("get", "sdd,spe", "-A").rstrip()
    point = f"  export KUBECONFIG={STATE.kubeconfig}\n  export PATH={STATE.programs}:$PATH\n  kubectl get pods -A\n"
    return f"\n{seen}\n\n" + "\n".join([*asked, point])
