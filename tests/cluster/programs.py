"""The programs of a node: their command lines and files. Nothing here runs anything.

They run where `node` has made a place for them: own processes, mounts and network, so what listens on every address
here is still reachable only from this machine and from pods.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import layout
from layout import API_PORT, CGROUP, DNS_SERVICE, DOMAIN, NODE, NODE_ADDRESS, State

# Earlier, the API server knows nobody's rights yet.
API_READY = f"https://127.0.0.1:{API_PORT}/readyz"
CNI_FOLDERS = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"]


@dataclass(frozen=True)
class Program:
    """One program that the node keeps running."""

    name: str
    arguments: list[str]
    # It is started once this URL answers that all is well.
    after: str = ""


def etcd(state: State, port: int = 2379, peers: int = 2380) -> Program:
    """The store of the API server."""
    return Program(
        "etcd",
        [
            f"--data-dir={state.data}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{port}",
            f"--advertise-client-urls=http://127.0.0.1:{port}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-cluster=default=http://127.0.0.1:{peers}",
            # A cluster that dies with its machine is not worth waiting for the disk.
            "--unsafe-no-fsync",
            "--logger=zap",
            "--log-level=warn",
        ],
    )


def api_server(state: State, port: int = API_PORT, store: int = 2379, more: list[str] | None = None) -> Program:
    """The API server, of which one finds in `more` where it listens."""
    credentials = state.credentials
    return Program(
        "kube-apiserver",
        [
            f"--etcd-servers=http://127.0.0.1:{store}",
            f"--secure-port={port}",
            f"--service-cluster-ip-range={layout.SERVICES}",
            f"--client-ca-file={credentials}/ca.crt",
            f"--tls-cert-file={credentials}/kube-apiserver.crt",
            f"--tls-private-key-file={credentials}/kube-apiserver.key",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            f"--service-account-key-file={credentials}/service-accounts.key",
            f"--service-account-signing-key-file={credentials}/service-accounts.key",
            "--authorization-mode=Node,RBAC",
            # As some distributions do: whoever makes owners wait for what they own needs a right to.
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            *(more or []),
        ],
        after=f"http://127.0.0.1:{store}/health",
    )


def programs(state: State) -> list[Program]:
    """All programs of a node, in the order in which they are started."""
    credentials, configuration = state.credentials, state.configuration
    kubeconfig = {name: str(credentials / f"{name}.kubeconfig") for name in ("kube-controller-manager", "kube-scheduler")}
    return [
        Program("containerd", [f"--config={configuration}/containerd.toml"]),
        etcd(state),
        api_server(
            state,
            more=[
                "--bind-address=0.0.0.0",
                f"--advertise-address={NODE_ADDRESS}",
                # What accounts of pods really ask for.
                f"--audit-policy-file={configuration}/audit.json",
                f"--audit-log-path={state.audit}",
                f"--kubelet-certificate-authority={credentials}/ca.crt",
                f"--kubelet-client-certificate={credentials}/kubelet-client.crt",
                f"--kubelet-client-key={credentials}/kubelet-client.key",
                "--kubelet-preferred-address-types=InternalIP",
                # APIs of others, such as metrics, are asked in the name of whoever asks.
                f"--requestheader-client-ca-file={credentials}/ca.crt",
                "--requestheader-allowed-names=front-proxy-client",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                f"--proxy-client-cert-file={credentials}/front-proxy.crt",
                f"--proxy-client-key-file={credentials}/front-proxy.key",
            ],
        ),
        Program(
            "kube-controller-manager",
            [
                f"--kubeconfig={kubeconfig['kube-controller-manager']}",
                f"--authentication-kubeconfig={kubeconfig['kube-controller-manager']}",
                f"--authorization-kubeconfig={kubeconfig['kube-controller-manager']}",
                f"--service-account-private-key-file={credentials}/service-accounts.key",
                f"--root-ca-file={credentials}/ca.crt",
                f"--cluster-signing-cert-file={credentials}/ca.crt",
                f"--cluster-signing-key-file={credentials}/ca.key",
                "--use-service-account-credentials=true",
                "--bind-address=127.0.0.1",
                # There is one: a lease would only delay its start.
                "--leader-elect=false",
            ],
            after=API_READY,
        ),
        Program(
            "kube-scheduler",
            [
                f"--kubeconfig={kubeconfig['kube-scheduler']}",
                f"--authentication-kubeconfig={kubeconfig['kube-scheduler']}",
                f"--authorization-kubeconfig={kubeconfig['kube-scheduler']}",
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
            ],
            after=API_READY,
        ),
        Program(
            "kubelet",
            [
                f"--config={configuration}/kubelet.json",
                f"--kubeconfig={credentials}/kubelet.kubeconfig",
                f"--hostname-override={NODE}",
                f"--node-ip={NODE_ADDRESS}",
            ],
            after=API_READY,
        ),
        Program("kube-proxy", [f"--config={configuration}/kube-proxy.json"], after=API_READY),
        Program(
            "network-policies",
            [f"--kubeconfig={credentials}/network-policies.kubeconfig", f"--node={NODE}"],
            after=API_READY,
        ),
    ]


def alone(state: State, store: int, peers: int, port: int) -> list[Program]:
    """An API server and its store, for this machine's own processes only: objects are kept and checked, and that is all."""
    local = [
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        # The Service `kubernetes` cannot lead to a loopback address.
        "--endpoint-reconciler-type=none",
        # Nobody makes accounts for pods.
        "--disable-admission-plugins=ServiceAccount",
    ]
    return [etcd(state, store, peers), api_server(state, port, store, local)]


def files(state: State, runc: str, cni: list[str], snapshotter: str) -> dict[Path, str]:
    """The configuration files, by path."""
    folder = state.configuration
    return {
        folder / "containerd.toml": _containerd(state, runc, cni, snapshotter),
        folder / "cni" / "10-pods.conflist": _json(_pod_network(state)),
        folder / "kubelet.json": _json(_kubelet(state)),
        folder / "kube-proxy.json": _json(_kube_proxy(state)),
        folder / "audit.json": _json(_audit()),
        # Nobody beyond the cluster is asked for names.
        folder / "resolv.conf": "",
    }


def hosts() -> list[str]:
    """What the certificates of servers are good for."""
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}"]
    return [NODE_ADDRESS, "127.0.0.1", layout.API_SERVICE, NODE, "localhost", *names]


def _containerd(state: State, runc: str, cni: list[str], snapshotter: str) -> str:
    # JSON's strings and arrays of strings are TOML's.
    text = json.dumps
    return f"""version = 3
root = {text(str(state.data / "containerd"))}
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]

[grpc]
address = {text(str(state.containerd))}

[plugins."io.containerd.cri.v1.images"]
snapshotter = {text(snapshotter)}

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = {text(layout.POD_IMAGE)}

[plugins."io.containerd.cri.v1.runtime"]
# Where CAP_SYS_RESOURCE is missing, runc could not lower a score.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = {text(runc)}

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = {text(cni)}
conf_dir = {text(str(state.configuration / "cni"))}
"""


def _pod_network(state: State) -> dict:
    # Routed, not bridged: what pods of this node say to each other passes the node's tables too, so that Services
    # work between them and servers see who really asks.
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": str(layout.NODE_PODS)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(state.data / "cni" / "networks"),
    }
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{"type": "ptp", "ipam": addresses}, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def _kubelet(state: State) -> dict:
    credentials = state.credentials
    return {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(credentials / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(credentials / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(credentials / "kubelet-server.key"),
        "containerRuntimeEndpoint": f"unix://{state.containerd}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "maxPods": 250,
        "clusterDomain": DOMAIN,
        "clusterDNS": [DNS_SERVICE],
        "resolvConf": str(state.configuration / "resolv.conf"),
        "volumePluginDir": str(state.data / "kubelet" / "plugins"),
        # There is no registry to pull an image from again, and a full disk is not the tests' subject.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "64Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def _audit() -> dict:
    accounts = {"level": "Metadata", "userGroups": ["system:serviceaccounts"]}
    # The cluster's own are many, and nobody's subject.
    own = {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]}
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [own, accounts, {"level": "None"}],
    }


def _kube_proxy(state: State) -> dict:
    # Zeros leave the machine's limits on connections as they are.
    untouched = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    return {
        "kind": "KubeProxyConfiguration",
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "clientConnection": {"kubeconfig": str(state.credentials / "kube-proxy.kubeconfig")},
        "mode": "iptables",
        "clusterCIDR": str(layout.PODS),
        "hostnameOverride": NODE,
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        "conntrack": untouched,
        "iptables": {"localhostNodePorts": False, "minSyncPeriod": "0s"},
    }


def _json(value: dict) -> str:
    return json.dumps(value, indent=2) + "\n"
