"""The cluster that tests run on: that of this machine, or one that its user has (`FORETOKEN_TEST_CLUSTER=existing`)."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import subprocess
from typing import Iterator

import cluster
import layout

EXISTING = os.environ.get("FORETOKEN_TEST_CLUSTER") == "existing"
# An API server of the tests' own, which `api` has named in KUBECONFIG.
ALONE = os.environ.get("FORETOKEN_TEST_API") == "alone"
EXECUTABLE = os.environ.get("FORETOKEN_EXECUTABLE", "")
# What names of images begin with there: a registry, and a folder in it.
REGISTRY = os.environ.get("FORETOKEN_TEST_REGISTRY", "") if EXISTING else ""
OURS = [str(layout.STATE.programs / "kubectl"), f"--kubeconfig={layout.STATE.kubeconfig}"]
KUBECTL = ["kubectl"] if EXISTING or ALONE else OURS
# Seconds within which whatever is waited for comes, also on a busy machine.
PATIENCE = 120


class CommandError(cluster.ClusterError, AssertionError):
    """A command said that it failed, which fails a test that did not expect it."""


def run(command: list[str], stdin: str | None = None) -> str:
    """What a command prints; an error with what it says if it fails."""
    done = subprocess.run(command, input=stdin, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise CommandError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """What kubectl prints."""
    return run([*KUBECTL, *arguments], stdin)


def helm(*arguments: str) -> str:
    """What Helm prints."""
    return run(["helm", *arguments]) if EXISTING else cluster.helm(*arguments)


def exists(kind: str) -> bool:
    """Whether the cluster has a kind of resources."""
    try:
        return kind in kubectl("api-resources", "--output=name").split()
    except CommandError:
        return False


def image(name: str) -> str:
    """What an image is called there."""
    return f"{REGISTRY.rstrip('/')}/{name}" if REGISTRY else name


def pod_image() -> str:
    """What pods of the tests themselves run."""
    return os.environ.get("FORETOKEN_TEST_POD_IMAGE") or (image("pod:1") if REGISTRY else layout.POD_IMAGE)


def there(manifest: str) -> str:
    """A manifest in which images are called what they are called there."""
    manifest = manifest.replace("oci://story-", f"oci://{image('story-')}").replace(layout.POD_IMAGE, pod_image())
    return manifest.replace("imagePullPolicy: Never", "imagePullPolicy: IfNotPresent") if EXISTING else manifest


@functools.cache
def proxy() -> str:
    """The API server without kubectl between, which takes longer to start than some things to happen."""
    process = subprocess.Popen([*KUBECTL, "proxy", "--port=0"], stdout=subprocess.PIPE, text=True)
    atexit.register(process.terminate)
    return "http://" + process.stdout.readline().split()[-1]


def router(namespace: str, name: str = "story") -> str:
    """Where the router of a deployment is reached from this machine."""
    if EXISTING:
        return f"{proxy()}/api/v1/namespaces/{namespace}/services/{name}-router:8000/proxy"
    path = "jsonpath={.spec.clusterIP}"
    return f"http://{kubectl('get', 'service', f'{name}-router', f'--namespace={namespace}', '-o', path)}:8000"


@contextlib.contextmanager
def forwarded(namespace: str, pod: str, port: int) -> Iterator[int]:
    """A port of this machine that leads to one of a pod, whomever policies let dial it."""
    command = [*KUBECTL, "port-forward", f"--namespace={namespace}", f"pod/{pod}", f":{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as forwarder:
        try:
            listening = re.search(r":(\d+) ->", forwarder.stdout.readline())
            if listening is None:
                raise ConnectionError(f"{namespace}/{pod} is not there")
            yield int(listening.group(1))
        finally:
            forwarder.terminate()
