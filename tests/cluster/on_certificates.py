"""Certificates of all services from the real cert-manager: `python3 tests/cluster test-certificates`."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
from datetime import datetime, timezone
from pathlib import Path
from typing import Callable

import addons
import cluster
import layout
import on_service
import service
from faults import NAMESPACES, Faults
from observed import condition, eventually, message, metric, names, pods, status, whole
from on_rights import asked
from service import POOL, SHARING
from stream import Stream, complete, drafted, said
from where import EXECUTABLE, EXISTING, PATIENCE, exists, forwarded, kubectl, router

sys.path.insert(0, str(layout.REPOSITORY / "tests" / "clients"))
import with_server

KIND = "certificates.cert-manager.io"
# Some of them: what is said by whom is on_service's matter.
BODIES = on_service.BODIES[::3]
OPERATOR = ("deployment/foretoken-operator", f"--namespace={service.NAMESPACE}")
ISSUER = layout.MANIFESTS / "issuer.yaml"
# Who has a certificate, and the port at which it is shown; routers only dial.
SERVICES = {(POOL, "draft"): 7100} | {(one, "target"): 7000 for one in SHARING} | {(one, "router"): None for one in SHARING}
DAY = 24 * 3600


def secret(namespace: str, name: str) -> dict[str, bytes]:
    """What a Secret holds; nothing if there is none."""
    found = kubectl("get", "secret", name, f"--namespace={namespace}", "--ignore-not-found", "-o", "json")
    data = json.loads(found).get("data", {}) if found else {}
    return {key: base64.b64decode(value) for key, value in data.items()}


def leafs() -> dict[tuple[str, str], bytes]:
    """The certificates (PEM) that services are given; nothing for those that have none."""
    return {(place, one): secret(place, f"story-{one}-tls").get("tls.crt", b"") for place, one in SERVICES}


def openssl(*words: str, certificate: bytes) -> str:
    """What openssl says of a certificate; an error if it refuses it."""
    done = subprocess.run(["openssl", *words], input=certificate, capture_output=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"openssl {' '.join(words)}: {done.stderr.decode()}{done.stdout.decode()}")
    return done.stdout.decode()


def shown(namespace: str, component: str, client: tuple[str, str]) -> bytes:
    """The certificate (DER) by which the pod of a component proves now who it is, to a `client` that has one too."""
    place, dialler = client
    with tempfile.TemporaryDirectory() as folder:
        for name, content in secret(place, f"story-{dialler}-tls").items():
            (Path(folder) / name).write_bytes(content)
        context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    # It says a service's name, not a host's.
    context.check_hostname = False
    with forwarded(namespace, names(namespace, component)[0], SERVICES[namespace, component]) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection, context.wrap_socket(connection) as secured:
            return secured.getpeercert(binary_form=True)


def all_show_what_they_have() -> bool:
    """Whether every port proves who it is by the certificate that is in its Secret now."""
    for (namespace, component), leaf in leafs().items():
        client = (SHARING[0], "target") if component == "draft" else (namespace, "router")
        if SERVICES[namespace, component] and shown(namespace, component, client) != ssl.PEM_cert_to_DER_cert(leaf.decode()):
            return False
    return True


def renew(namespace: str, component: str) -> None:
    """Has a certificate issued again before its time, as `cmctl renew` does."""
    place = (f"--namespace={namespace}", "--subresource=status")
    conditions = json.loads(kubectl("get", KIND, f"story-{component}", f"--namespace={namespace}", "-o", "json"))["status"]["conditions"]
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    wish = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "asked for", "lastTransitionTime": now}
    patch = json.dumps({"status": {"conditions": [*conditions, wish]}})
    kubectl("patch", KIND, f"story-{component}", *place, "--type=merge", "-p", patch)


def are_told(since: str) -> bool:
    """Whether the nodes of all pods were told since then that pods mount something else, and so need not find out."""
    annotations = [pod["metadata"].get("annotations", {}) for namespace in NAMESPACES for pod in pods(namespace).values()]
    return all(found.get("foretoken.io/mounts-changed", "") > since for found in annotations)


def is_authority(authority: bytes) -> bool:
    """Whether all services are told to trust this authority (PEM), and no other."""
    return authority != b"" and all(secret(place, f"story-{one}-tls").get("ca.crt") == authority for place, one in SERVICES)


def dial_again() -> None:
    """Replaces the pool and a target: connections that are up say nothing of new certificates."""
    faults = Faults()
    gone = faults.delete(POOL, "draft") | faults.delete(SHARING[0], "target")
    eventually(lambda: whole(faults.wanted, gone))
    eventually(lambda: sum(metric(pod, "foretoken_links{") for pod in pods(POOL).values()) == len(SHARING))


def start_again() -> None:
    """Has another operator take over."""
    kubectl("rollout", "restart", *OPERATOR)
    kubectl("rollout", "status", *OPERATOR, "--timeout=120s")


def told(namespace: str, kind: str, name: str) -> tuple[str, str]:
    """A condition of the example's object, and its message."""
    found = status(namespace, kind)
    return condition(found, name), message(found, name)


@unittest.skipUnless(EXECUTABLE, "FORETOKEN_EXECUTABLE does not say which foretoken to put into the image")
@unittest.skipIf(EXISTING, "an existing cluster is not given controllers")
class OnCertificates(unittest.TestCase):
    """The chart and examples/shared-endpoint.yaml, from a cluster without cert-manager to one that has it."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.begin = datetime.now(timezone.utc).isoformat()
        cls.had_none = not exists(KIND)
        # Whether it is ready is what is looked at.
        service.installed_for(cls, "--set=certificates.from=cert-manager,certificates.issuer=internal", "--wait=hookOnly")
        cls.addClassCleanup(kubectl, "delete", "--ignore-not-found", "-f", str(service.EXAMPLE), "--timeout=180s")
        with with_server.server(EXECUTABLE) as url:
            cls.expected = [said(complete(url, body)) for body in BODIES]

    def answers(self) -> None:
        """Both routers say what one machine says, and drafts are used."""
        for namespace in SHARING:
            url = router(namespace)
            self.assertEqual([said(complete(url, body)) for body in BODIES], self.expected)
            eventually(lambda: drafted(url, BODIES[0]) > 0)

    def test_1_without_cert_manager_it_is_said_what_to_install(self) -> None:
        if not self.had_none:
            self.skipTest("the cluster has cert-manager already")
        path = "jsonpath={.items[*].status.containerStatuses[*].lastState.terminated.message}"
        operator = ("get", "pods", f"--namespace={service.NAMESPACE}", "-l", "app.kubernetes.io/component=operator", "-o", path)
        eventually(lambda: "install cert-manager" in kubectl(*operator))

    def test_2_without_the_issuer_it_is_said_who_is_missing(self) -> None:
        cluster.built(addons.modules(["cert-manager"]))
        cluster.install("cert-manager")
        # Else it is started again, only not at once.
        start_again()
        if kubectl("get", "clusterissuer", "internal", "--ignore-not-found"):
            self.skipTest("the cluster has the issuer already")
        kubectl("apply", "--server-side", "-f", str(service.EXAMPLE))
        places = [(POOL, "spe", "Ready"), *((one, "sdd", kind) for one in SHARING for kind in ("TargetReady", "RouterReady"))]
        for place in places:
            with self.subTest(place):
                eventually(lambda: told(*place)[0] == "False CertificateNotIssued")
                self.assertIn("see that there is a ClusterIssuer internal", told(*place)[1])

    def test_3_with_it_all_serve_and_say_what_one_machine_says(self) -> None:
        self.addClassCleanup(kubectl, "delete", "--ignore-not-found", "-f", str(ISSUER))
        kubectl("apply", "--server-side", "-f", str(ISSUER))
        kubectl("wait", "clusterissuer/internal", "--for=condition=Ready", f"--timeout={PATIENCE}s")
        kubectl("apply", "--server-side", "-f", str(service.EXAMPLE))
        faults = Faults()
        eventually(lambda: whole(faults.wanted, set()), patience=2 * PATIENCE)
        faults.persist()
        self.answers()

    def test_4_certificates_are_of_the_issuer_and_say_who_services_are(self) -> None:
        authority = secret("cert-manager", "internal-ca")["tls.crt"]
        # cert-manager may issue a new authority twice, and leaves alone what the first one has signed.
        for namespace, component in SERVICES:
            if secret(namespace, f"story-{component}-tls")["ca.crt"] != authority:
                renew(namespace, component)
        eventually(lambda: is_authority(authority))
        keys = set()
        with tempfile.NamedTemporaryFile() as file:
            file.write(authority)
            file.flush()
            for (namespace, component), leaf in leafs().items():
                with self.subTest(f"{namespace}/{component}"):
                    self.assertEqual(secret(namespace, f"story-{component}-tls")["ca.crt"], authority)
                    for purpose in ("sslserver", "sslclient"):
                        openssl("verify", "-CAfile", file.name, "-purpose", purpose, certificate=leaf)
                    said_to_be = openssl("x509", "-noout", "-ext", "subjectAltName", certificate=leaf).splitlines()[1:]
                    self.assertEqual([name.strip() for name in said_to_be], [f"URI:spiffe://foretoken/ns/{namespace}/{component}/story"])
                    openssl("x509", "-noout", "-checkend", str(6 * DAY), certificate=leaf)
                    with self.assertRaises(AssertionError):
                        openssl("x509", "-noout", "-checkend", str(8 * DAY), certificate=leaf)
                    keys.add(openssl("x509", "-noout", "-pubkey", certificate=leaf))
        self.assertEqual(len(keys), len(SERVICES))

    def test_5_all_are_renewed_under_requests_and_none_fails(self) -> None:
        before, begin = leafs(), datetime.now(timezone.utc).isoformat()
        with Stream([router(namespace) for namespace in SHARING], BODIES, self.expected) as stream:
            stream.more(4)
            # One is lost, and the others are asked for.
            kubectl("delete", "secret", "story-draft-tls", f"--namespace={POOL}")
            for namespace, component in SERVICES:
                if component != "draft":
                    renew(namespace, component)
            eventually(lambda: all(leaf not in (b"", before[who]) for who, leaf in leafs().items()))
            eventually(lambda: are_told(begin))
            eventually(all_show_what_they_have, 1)
            dial_again()
            stream.more(12)
        self.assertEqual((stream.failures, stream.changes), ([], []))
        self.assertGreater(stream.drafted, 0)

    def test_6_the_operator_asks_for_no_secret_and_for_nothing_that_it_may_not(self) -> None:
        used, never = asked(self.begin)[f"{service.NAMESPACE}:foretoken-operator"]
        self.assertEqual(never, {})
        self.assertIn("cert-manager.io/certificates", used)
        self.assertNotIn("/secrets", used)

    def test_7_the_operators_own_authority_takes_over_and_gives_back(self) -> None:
        service.change("certificates.from=own")
        for kind in (KIND, "secrets"):
            kubectl("delete", kind, "--all-namespaces", "-l", "app.kubernetes.io/managed-by=foretoken-operator")
        start_again()
        self.taken_over_by(lambda: secret(service.NAMESPACE, "foretoken-ca").get("ca.crt", b""))
        service.change("certificates.from=cert-manager")
        self.taken_over_by(lambda: secret("cert-manager", "internal-ca")["tls.crt"])

    def taken_over_by(self, authority: Callable[[], bytes]) -> None:
        """All services come to trust an authority, prove themselves by it, and serve."""
        eventually(lambda: is_authority(authority()))
        eventually(all_show_what_they_have, 1)
        dial_again()
        self.answers()


if __name__ == "__main__":
    unittest.main()
