"""The table of docs/migration.md is that of the programs, theirs and ours."""

from __future__ import annotations

import pytest

from tests.tools import konnectivity_differences as differences
from tests.tools.konnectivity_differences import DOCUMENT

pytestmark = pytest.mark.interop


def test_the_table_is_up_to_date() -> None:
    """`python -m tests.tools.konnectivity_differences --write` writes it."""
    text = DOCUMENT.read_text()
    assert differences.updated(text) == text


def test_a_metric_of_the_original_is_found_before_its_first_event() -> None:
    """A counter with labels is not on the page of a Go program until something was counted."""
    name = "konnectivity_network_proxy_server_lease_delete_total"
    assert name not in differences.metrics("go")["proxy-server"]
    shown = [each.what for each in differences.metric_differences("proxy-server")]
    assert not any("lease_delete_total" in what for what in shown)
    assert "`…_server_transferred_bytes_total`" in shown
