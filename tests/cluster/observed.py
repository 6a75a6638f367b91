"""What a cluster shows of the example, as whoever uses it sees it."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from typing import Callable, Iterator

import where
from service import SHARING
from stream import complete
from where import PATIENCE, kubectl

# The port at which every pod tells how it fares.
OBSERVATION = 9100
QUESTION = "Question: Tom has 3 apples and buys 5 more. How many apples does he have?"


def pods(namespace: str) -> dict[str, dict]:
    """Pods that nobody has told to go, by name."""
    listed = json.loads(kubectl("get", "pods", f"--namespace={namespace}", "-o", "json"))["items"]
    return {pod["metadata"]["name"]: pod for pod in listed if "deletionTimestamp" not in pod["metadata"]}


def names(namespace: str, component: str, owner: str = "story") -> list[str]:
    """The pods of a component."""
    return [name for name in pods(namespace) if name.startswith(f"{owner}-{component}-")]


def answers(url: str, model: str = "story-10m") -> bool:
    """Whether a router gives a token now."""
    try:
        return complete(url, {"model": model, "prompt": QUESTION, "max_tokens": 1}, timeout=5)["usage"]["completion_tokens"] == 1
    except OSError:
        return False


def identities(pod: dict) -> set[str]:
    """What tells a pod, and the container in it, from those that they replace."""
    return {pod["metadata"]["uid"], *(one.get("containerID", "") for one in pod["status"].get("containerStatuses", []))}


def served(pod: dict) -> float:
    """Tokens of the prompts that a target has taken since it started; none once it is gone."""
    return metric(pod, "vllm:prompt_tokens_total")


@contextlib.contextmanager
def observed(pod: dict) -> Iterator[str]:
    """Where a pod is asked how it fares."""
    if not where.EXISTING:
        yield f"{pod['status']['podIP']}:{OBSERVATION}"
        return
    with where.forwarded(pod["metadata"]["namespace"], pod["metadata"]["name"], OBSERVATION) as port:
        yield f"127.0.0.1:{port}"


def metric(pod: dict, name: str) -> float:
    """What a pod says of itself by that name, summed over labels; 0 once it is gone."""
    try:
        with observed(pod) as address, urllib.request.urlopen(f"http://{address}/metrics", timeout=1) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, KeyError):
        return 0.0
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def is_ready(pod: dict) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


def status(namespace: str, kind: str = "sdd") -> dict:
    """What the example's deployment in a namespace, or its pool, says of itself."""
    return json.loads(kubectl("get", kind, "story", f"--namespace={namespace}", "-o", "json")).get("status", {})


def message(status: dict, name: str) -> str:
    """What a condition says; nothing while there is none."""
    return next((one["message"] for one in status.get("conditions", []) if one["type"] == name), "")


def condition(status: dict, name: str) -> str:
    found = [one for one in status.get("conditions", []) if one["type"] == name]
    return f"{found[0]['status']} {found[0]['reason']}" if found else ""


def eventually(what: Callable[[], object], pause: float = 0.1, patience: float = PATIENCE) -> None:
    """Waits until something holds."""
    begin = time.monotonic()
    problem = "it is not so"
    while time.monotonic() - begin < patience:
        try:
            if what():
                return
            problem = "it is not so"
        # Whoever is asked may not be there yet, nor what is looked for in what it says.
        except (AssertionError, OSError, LookupError) as error:
            problem = f"{type(error).__name__}: {error}"
        time.sleep(pause)
    raise AssertionError(f"not within {patience} s: {problem}")


def whole(wanted: dict[str, int], gone: set[str]) -> bool:
    """Whether as many pods as wanted are ready in each namespace, none of them of those gone, and both deployments say so."""
    for namespace, count in wanted.items():
        present = [pod for pod in pods(namespace).values() if not identities(pod) & gone]
        if len(present) != count or not all(is_ready(pod) for pod in present):
            return False
    return all(is_active(status(namespace)) for namespace in SHARING)


def is_active(status: dict) -> bool:
    active = status.get("speculation", {}).get("state") == "Active"
    return active and condition(status, "Ready") == "True Serving" and condition(status, "Progressing").startswith("False")
