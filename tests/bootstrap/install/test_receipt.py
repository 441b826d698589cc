"""The receipt of a removal: one JSON document whose fields others rely on."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

from bootbridge.bootstrap.install import resources
from bootbridge.bootstrap.install.receipt import RESOURCE_NAMES, Receipt, ReceiptItem
from bootbridge.bootstrap.plan.plan import Flavour, Plan, ProxyImage
from bootbridge.common.host import Host

PLAN = Plan(flavour=Flavour.KUBEADM, image=ProxyImage("bootbridge", "image"))
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECRET = ReceiptItem("secret", "Secret a/b")
NAMESPACE = ReceiptItem("namespace", "Namespace a", "Some content remains")


def test_a_receipt_has_exactly_these_fields() -> None:
    receipt = Receipt(PLAN, True, NOON, (SECRET, NAMESPACE), (SECRET,), (NAMESPACE,), ("careful",))
    assert json.loads(receipt.dump()) == {
        "version": 1,
        "writtenAt": "2026-01-31T12:00:00Z",
        "writtenBy": "bootbridge down",
        "plan": {
            "flavour": "kubeadm",
            "platform": "none",
            "infraID": "",
            "namespace": "bootstrap-konnectivity",
            "agentPort": 8091,
            "recorded": True,
        },
        "clean": False,
        "found": [{"resource": "secret", "name": "Secret a/b"}, NAMESPACE.document()],
        "removed": [{"resource": "secret", "name": "Secret a/b"}],
        "remains": [{"resource": "namespace", "name": "Namespace a", "reason": "Some content remains"}],
        "warnings": ["careful"],
    }


def test_the_time_is_utc_wherever_it_was_taken() -> None:
    there = NOON.astimezone(timezone(timedelta(hours=5)))
    assert Receipt(PLAN, True, there).document()["writtenAt"] == "2026-01-31T12:00:00Z"


def test_the_sentence_says_whether_anything_is_left() -> None:
    assert Receipt(PLAN, True, NOON).sentence() == "Nothing of the tunnel was there, and nothing is."
    assert Receipt(PLAN, True, NOON, (SECRET,), (SECRET,)).sentence() == "1 of 1 removed, nothing is left."
    left = Receipt(PLAN, True, NOON, (SECRET, NAMESPACE), (SECRET,), (NAMESPACE,))
    assert left.sentence() == "1 of 2 removed, 1 remain."


def test_removal_order_is_the_reverse_of_creation_order() -> None:
    """One list of parts; the receipt's names are its reverse."""
    site = resources.InstallContext(PLAN, Host("/nonexistent"), firewall=True)
    created = [part.name for part in resources.resources(site)]
    assert list(dict.fromkeys(reversed(created))) == list(RESOURCE_NAMES)
