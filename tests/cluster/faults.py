"""What can happen to the example on a cluster, and what is gone for good afterwards."""

from __future__ import annotations

import json
import time
from typing import Callable

import cluster
import service
import where
from observed import condition, eventually, identities, message, metric, names, pods, status, whole
from service import POOL, SHARING
from where import kubectl

NAMESPACES = (POOL, *SHARING)
CHAT, TALES = SHARING
# Seconds that nodes take to pass on a Secret of which they are told, at most.
NODES = 15
# What needs the node of this machine, or the programs that run on it: somebody else's are left alone, and their API
# server, through which requests go there, passes none on to a router that ends while it is the only one.
OURS = {
    "router pod deleted",
    "endpoint pod killed",
    "one target pod of 3 killed",
    "one of two router pods killed",
    "operator upgraded with all pods",
    "API server killed",
    "etcd killed",
}
# Does something, and answers identities of what must not be there afterwards.
Fault = Callable[[], set[str]]


def patch(kind: str, namespace: str, change: dict) -> None:
    """Changes the example's object of a kind in a namespace."""
    kubectl("patch", kind, "story", f"--namespace={namespace}", "--type=merge", "--patch", json.dumps(change))


def all_of(namespace: str) -> set[str]:
    """The pods that are in a namespace now."""
    return {pod["metadata"]["uid"] for pod in pods(namespace).values()}


def targets_of(namespace: str) -> set[str]:
    """The targets that are in a namespace now."""
    return {pods(namespace)[name]["metadata"]["uid"] for name in names(namespace, "target")}


def is_rolled_out(reason: str) -> bool:
    """Whether the pool's rollout has come to that; what it says instead, otherwise."""
    now = status(POOL, "spe")
    told = condition(now, "RolledOut")
    if told != reason:
        raise AssertionError(f"{told}: {message(now, 'RolledOut')}")
    return True


class Faults:
    """Everything that may fail or be changed, by name, in an order in which each begins with what the one before left."""

    def __init__(self) -> None:
        # How many pods there are to be, by namespace; as changes have it.
        self.wanted = dict.fromkeys(SHARING, 2) | {POOL: 1}

    def every(self) -> dict[str, Fault]:
        every = {
            "endpoint pod killed": lambda: self.kill_pod(POOL, "draft"),
            "endpoint pod deleted": lambda: self.delete(POOL, "draft"),
            "endpoint deleted and applied again": self.bring_pool_back,
            "pool rolled": lambda: self.roll_pool(32),
            "pool to a worse draft and back": lambda: self.try_draft("worse", "False RolledBack"),
            "pool to an equal draft": lambda: self.try_draft("equal", "True Promoted"),
            "targets rolled": self.roll_targets,
            "the only target pod deleted": lambda: self.delete(CHAT, "target"),
            "targets 1 to 3": lambda: self.scale(3),
            "one target pod of 3 killed": lambda: self.kill_pod(CHAT, "target"),
            "targets 3 to 1": lambda: self.scale(1),
            "router pod deleted": lambda: self.delete(TALES, "router"),
            "one of two router pods killed": self.kill_router,
            "routers 2 to 1": lambda: self.set_routers(1),
            "operator pod deleted": self.restart_operator,
            "leading one of two operators killed": self.take_over,
            "operator upgraded with all pods": self.upgrade,
            "grant revoked and given again": self.revoke,
            "API server killed": lambda: self.kill("kube-apiserver"),
            "etcd killed": lambda: self.kill("etcd"),
            "authority succeeded": self.succeed,
            "authority deleted": self.replace_authority,
        }
        return {name: fault for name, fault in every.items() if not (where.EXISTING and name in OURS)}

    def delete(self, namespace: str, component: str) -> set[str]:
        name = names(namespace, component)[0]
        uid = pods(namespace)[name]["metadata"]["uid"]
        kubectl("delete", "pod", name, f"--namespace={namespace}", "--wait=false")
        return {uid}

    def kill_pod(self, namespace: str, component: str) -> set[str]:
        """As when it has no memory left: the kubelet starts its container again, later each time."""
        pod = pods(namespace)[names(namespace, component)[0]]
        container = pod["status"]["containerStatuses"][0]["containerID"]
        cluster.ctr("tasks", "kill", "--signal=SIGKILL", container.removeprefix("containerd://"))
        return {container}

    def kill(self, program: str) -> set[str]:
        cluster.ask({"do": "kill", "program": program})
        return set()

    def bring_pool_back(self) -> set[str]:
        """The object goes once nobody is served by it any more, and deployments do without until there is one again."""
        gone = all_of(POOL)
        kubectl("delete", "spe", "story", f"--namespace={POOL}", "--timeout=120s")
        for namespace in SHARING:
            eventually(lambda: condition(status(namespace), "EndpointsResolved") == "False EndpointNotFound")
            eventually(lambda: condition(status(namespace), "Ready") == "True Serving")
        kubectl("apply", "--server-side", "-f", "-", stdin=service.document("SpeculationEndpoint", POOL))
        return gone

    def roll_pool(self, slots: int) -> set[str]:
        gone = all_of(POOL)
        patch("spe", POOL, {"spec": {"slotsPerReplica": slots}})
        return gone

    def persist(self) -> None:
        """Targets draft whether it pays at the moment or not: on a busy machine it may not, and nothing would be compared."""
        gone: set[str] = set()
        for namespace, policy in zip(SHARING, ("ssd", "speculative")):
            spec = json.loads(kubectl("get", "sdd", "story", f"--namespace={namespace}", "-o", "json"))["spec"]
            if spec["speculation"]["policy"].get(policy, {}).get("adaptive", True):
                gone |= targets_of(namespace)
                patch("sdd", namespace, {"spec": {"speculation": {"policy": {policy: {"adaptive": False}}}}})
        eventually(lambda: whole(self.wanted, gone))

    def try_draft(self, image: str, reason: str) -> set[str]:
        """Another draft model, which is tried beside the old one until it is told which is better."""
        self.persist()
        old = all_of(POOL)
        # As many verdicts as a busy machine has within the time, and a tolerance that so few tell from chance:
        # of the default one, 2,000 verdicts of two equal drafts are not always sure.
        rollout = {"canary": {"minVerdicts": 100, "deadlineSeconds": 300, "tolerance": 0.25}}
        patch("spe", POOL, {"spec": {"model": {"uri": where.there(f"oci://story-draft:{image}")}, "rollout": rollout}})
        eventually(lambda: is_rolled_out(reason), 0.5, 360)
        told = status(POOL, "spe")["rollout"]["outcome"]
        print(f"{image}: {told['result']}, {told['reason']}: {told['message']}", flush=True)
        return old if told["result"] == "Promoted" else set()

    def roll_targets(self) -> set[str]:
        gone = targets_of(CHAT)
        patch("sdd", CHAT, {"spec": {"target": {"template": {"metadata": {"annotations": {"rolled": "once"}}}}}})
        return gone

    def scale(self, count: int) -> set[str]:
        # Beside the router.
        self.wanted[CHAT] = 1 + count
        kubectl("scale", "sdd/story", f"--namespace={CHAT}", f"--replicas={count}")
        return set()

    def set_routers(self, count: int) -> set[str]:
        patch("sdd", CHAT, {"spec": {"router": {"replicas": count}}})
        # Beside the one target.
        self.wanted[CHAT] = 1 + count
        eventually(lambda: whole(self.wanted, set()))
        return set()

    def kill_router(self) -> set[str]:
        self.set_routers(2)
        return self.kill_pod(CHAT, "router")

    def restart_operator(self) -> set[str]:
        kubectl("delete", "pod", f"--namespace={service.NAMESPACE}", "-l", "app.kubernetes.io/component=operator")
        kubectl("rollout", "status", "deployment/foretoken-operator", f"--namespace={service.NAMESPACE}")
        return set()

    def take_over(self) -> set[str]:
        """The leader dies without giving its lease back, and the other has something to do."""
        service.set_operators(2)
        lease = ("get", "lease", "foretoken-operator", f"--namespace={service.NAMESPACE}", "-o", "jsonpath={.spec.holderIdentity}")
        leader = kubectl(*lease)
        kubectl("delete", "pod", leader, f"--namespace={service.NAMESPACE}", "--grace-period=0", "--force")
        gone = self.roll_pool(48)
        eventually(lambda: kubectl(*lease) != leader)
        return gone

    def upgrade(self) -> set[str]:
        gone = set().union(*map(all_of, NAMESPACES))
        service.upgrade("another")
        return gone

    def revoke(self) -> set[str]:
        """Until nobody of the namespace is served by the pool, and back."""
        kubectl("label", "namespace", TALES, "drafts-")
        eventually(lambda: condition(status(TALES), "EndpointsResolved") == "False NotGranted")
        eventually(lambda: sum(metric(pod, "foretoken_links{") for pod in pods(POOL).values()) == 1)
        eventually(lambda: status(TALES).get("speculation", {}).get("state") == "Off")
        kubectl("label", "namespace", TALES, "drafts=shared")
        return set()

    def certified(self) -> dict[str, str]:
        """The certificates that pods are given, by namespace and Secret."""
        found: dict[str, str] = {}
        for namespace in NAMESPACES:
            for secret in json.loads(kubectl("get", "secrets", f"--namespace={namespace}", "-o", "json"))["items"]:
                if secret["metadata"]["name"].endswith("-tls"):
                    found[f"{namespace}/{secret['metadata']['name']}"] = secret["data"]["tls.crt"]
        return found

    def issued_anew(self, change: Callable[[], object]) -> set[str]:
        """Whether all pods have other certificates after a change, once nodes have passed them on and new connections are made."""
        before = self.certified()
        change()
        self.restart_operator()
        eventually(lambda: all(after != before[name] for name, after in self.certified().items()))
        time.sleep(NODES)
        gone = self.delete(POOL, "draft")
        # Connections that are up say nothing of new certificates.
        new = lambda: [pod for pod in pods(POOL).values() if not identities(pod) & gone]
        eventually(lambda: sum(metric(pod, "foretoken_links{") for pod in new()) == len(SHARING))
        return gone

    def succeed(self) -> set[str]:
        """A successor of the authority that is asked for, and signs as if a day had passed."""
        ca = ("secret", "foretoken-ca", f"--namespace={service.NAMESPACE}")
        kubectl("annotate", *ca, "foretoken.io/succeed=now")
        self.restart_operator()
        read = lambda: json.loads(kubectl("get", *ca, "-o", "json"))["data"]
        eventually(lambda: sum(name.endswith(".key") for name in read()) == 2)
        time.sleep(NODES)

        def age() -> None:
            data = read()
            made = sorted(int(name.removesuffix(".key")) for name in data if name.endswith(".key"))
            older: dict[str, str | None] = {f"{one}.{end}": None for one in made for end in ("crt", "key")}
            for one, hours in zip(made, (50, 25)):
                older |= {f"{one - 3600 * hours}.{end}": data[f"{one}.{end}"] for end in ("crt", "key")}
            kubectl("patch", *ca, "--type=merge", "--patch", json.dumps({"data": older}))

        return self.issued_anew(age)

    def replace_authority(self) -> set[str]:
        ca = ("secret", "foretoken-ca", f"--namespace={service.NAMESPACE}")
        return self.issued_anew(lambda: kubectl("delete", *ca))
