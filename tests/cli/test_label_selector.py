"""Selectors are checked by the grammar that Kubernetes has for them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.cli.agent_flags import FLAGS
from bootbridge.errors import OperatorError


def check(selector):
    """What the agent takes from its command line."""
    return FLAGS.parse([f"--lease-label-selector={selector}"]).fields["lease_label_selector"]


@pytest.mark.parametrize(
    "selector",
    [
        "",
        "   ",
        "k8s-app=konnectivity-server",
        "k8s-app=konnectivity-server,component=proxy",
        "a==b, c != d",
        "a=",
        "a=,b",
        "a",
        "!a",
        "a,!b",
        "a in (b,c)",
        "a notin (b)",
        "a in ()",
        "a in (,b)",
        "a in (b,)",
        "in in (in, notin)",
        "a>1,b<2",
        "example.com/name=x",
        "a." + "b" * 61 + "=c",
    ],
)
def test_valid_selectors_come_back_as_given(selector):
    """The empty one picks everything."""
    assert check(selector) == selector


@pytest.mark.parametrize(
    "selector",
    [
        "*notavalidlabel*",
        ",",
        "a,",
        ",a",
        "=b",
        "a b",
        "a=b c",
        "a=(b)",
        "a in b",
        "a in (b",
        "a in (b c)",
        "a in (b=c)",
        "!a=b",
        "a>x",
        "a=-b",
        "-a=b",
        "a=" + "b" * 64,
        "A.com/a=b",
        "/a=b",
        "a/=b",
        "a!b",
    ],
)
def test_invalid_selectors_are_refused(selector):
    """Before an agent asks a kube-apiserver with them, again and again."""
    with pytest.raises(OperatorError, match="--lease-label-selector"):
        check(selector)


@given(st.text(alphabet="ab=!<>(), in*/.-", max_size=20))
def test_any_text_is_a_selector_or_one_clear_error(text):
    """The parser always ends, and never otherwise."""
    with contextlib.suppress(OperatorError):
        assert check(text) == text
