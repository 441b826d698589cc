"""The receipt of a removal: a JSON document with a fixed set of fields."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

from bootbridge.bootstrap.install import resources
from bootbridge.bootstrap.install.receipt import RESOURCE_NAMES, Receipt, ReceiptItem
from bootbridge.bootstrap.plan.plan import Flavour, Plan, ProxyImage
from bootbridge.cli import down, up
from bootbridge.common.host import Host
from bootbridge.common.progress import TITLE_COLUMNS

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


def test_the_time_is_converted_to_utc() -> None:
    local = NOON.astimezone(timezone(timedelta(hours=5)))
    assert Receipt(PLAN, True, local).document()["writtenAt"] == "2026-01-31T12:00:00Z"


def test_the_summary_counts_what_was_removed_and_what_remains() -> None:
    assert Receipt(PLAN, True, NOON).sentence() == "Nothing was installed, and nothing remains."
    assert Receipt(PLAN, True, NOON, (SECRET,), (SECRET,)).sentence() == "1 of 1 removed, nothing remains."
    left = Receipt(PLAN, True, NOON, (SECRET, NAMESPACE), (SECRET,), (NAMESPACE,))
    assert left.sentence() == "1 of 2 removed, 1 remain."


def test_removal_order_is_the_reverse_of_creation_order() -> None:
    context = resources.InstallContext(PLAN, Host("/nonexistent"), firewall=True)
    created = [resource.name for resource in resources.resources(context)]
    assert list(dict.fromkeys(reversed(created))) == list(RESOURCE_NAMES)


def test_every_title_fits_in_the_column_of_titles() -> None:
    """A longer one would shift its result in the output of `up`, `down` and `status`."""
    titles = [resource.title for resource in resources.ALL]
    assert {"plan record", "agent DaemonSet", "firewall rule", "kubeadm configuration"} <= set(titles)
    assert [title for title in titles if len(title) > TITLE_COLUMNS] == []


def test_the_help_of_up_and_down_names_every_resource_in_order() -> None:
    installed = [resource.title for resource in resources.ALL if resource.installed_by_up]
    removed = [resource.title for resource in reversed(resources.ALL)]
    for command, titles in ((up.COMMAND, installed), (down.COMMAND, removed)):
        text = " ".join(command.description.split())
        places = [text.find(title) for title in titles]
        assert -1 not in places, titles[places.index(-1)]
        assert places == sorted(places)
