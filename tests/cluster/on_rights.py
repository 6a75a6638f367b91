"""Which rights the operator and routers used while all the tests before ran: part of `make cluster-test`, and its last."""

from __future__ import annotations

import functools
import json
import unittest

import layout
import service
from on_chart import documented
from service import SHARING
from where import EXECUTABLE, EXISTING

# Who is ready behind Services.
SLICES = "discovery.k8s.io/endpointslices"
# How accounts of what the operator makes end.
COMPONENTS = ("-router", "-target", "-draft")
# Rights that others ask for, of which no log tells: of whoever makes an owner wait, and of whoever gives rights to others.
BY_ADMISSION = {
    "foretoken.io/specdecodedeployments/finalizers",
    "foretoken.io/speculationendpoints/finalizers",
    SLICES,
}
# Of kinds that a cluster may not have: the operator looks whether it does.
OPTIONAL = "leaderworkerset.x-k8s.io/leaderworkersets"
# Of a release that asks cert-manager, and no other.
CERTIFICATES = {"cert-manager.io/certificates": {"list", "watch", "create", "patch", "delete"}}


@unittest.skipUnless(EXECUTABLE, "FORETOKEN_EXECUTABLE does not say which foretoken to put into the image")
@unittest.skipIf(EXISTING, "an existing cluster's audit log is not for us to read")
class OnRights(unittest.TestCase):
    """The API server's audit log."""

    def test_the_operator_uses_all_of_its_rights_and_no_others(self) -> None:
        asked_for, never = asked()[f"{service.NAMESPACE}:foretoken-operator"]
        used = dict(asked_for)
        given = {resource: verbs for resource, verbs in documented().items() if resource not in BY_ADMISSION}
        self.assertLessEqual(used.pop(OPTIONAL, set()), given.pop(OPTIONAL))
        for resource, verbs in CERTIFICATES.items():
            self.assertLessEqual(used.pop(resource, set()), verbs)
        self.assertEqual(used, given)
        self.assertEqual(never, {})

    def test_routers_use_all_of_the_rights_that_they_are_given_and_targets_and_drafts_ask_nothing(self) -> None:
        # What the operator may only to give it to routers.
        given = {SLICES: documented()[SLICES]}
        accounts = {account: said for account, said in asked().items() if account.endswith(COMPONENTS)}
        routers = {f"{namespace}:story-router" for namespace in SHARING}
        self.assertLessEqual(routers, set(accounts))
        for account, (used, never) in accounts.items():
            with self.subTest(account=account):
                self.assertTrue(account.endswith("-router"), "it has no token")
                self.assertEqual(never, {})
                if account in routers:
                    self.assertEqual(used, given)
                else:
                    # Some are gone before they have asked for everything.
                    self.assertLessEqual(used.get(SLICES, set()), given[SLICES])
                    self.assertLessEqual(set(used), set(given))


@functools.cache
def asked(since: str = "") -> dict[str, tuple[dict[str, set[str]], dict[str, set[str]]]]:
    """What accounts, as NAMESPACE:NAME, have asked since a time: verbs of each resource, and those of them that they never may.

    The log is read once: it is to be asked for when nothing more comes."""
    used: dict[str, dict[str, set[str]]] = {}
    forbidden: dict[str, dict[str, set[str]]] = {}
    for line in layout.STATE.audit.read_text().splitlines():
        # Most lines are of nodes and users, and reading one as JSON takes longer than looking for these words.
        if "system:serviceaccount:" not in line:
            continue
        event = json.loads(line)
        about = event.get("objectRef", {})
        if "resource" not in about or event["requestReceivedTimestamp"] < since:
            continue
        account = event["user"]["username"].removeprefix("system:serviceaccount:")
        decision = event.get("annotations", {}).get("authorization.k8s.io/decision")
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        rights = (used if decision == "allow" else forbidden).setdefault(account, {})
        verbs = rights.setdefault(f"{about.get('apiGroup', '')}/{resource}", set())
        verbs.add(event["verb"])
        if event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201:
            # What is applied and was not there is also created, and has to be allowed to be.
            verbs.add("create")
    told = {}
    for account in {*used, *forbidden}:
        may = used.get(account, {})
        # An API server that has just begun forbids a while what it allows as soon as it knows everybody's rights.
        never = {resource: verbs - may.get(resource, set()) for resource, verbs in forbidden.get(account, {}).items()}
        told[account] = may, {resource: verbs for resource, verbs in never.items() if verbs}
    return told


if __name__ == "__main__":
    unittest.main()
