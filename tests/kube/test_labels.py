"""Label maps (`--lease-label`) and label selectors (`--lease-label-selector`)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.kube.labels import LabelError, is_label_selector, parse_label_map, selector_of


class TestLabelMap:
    def test_pairs_are_split_at_commas(self) -> None:
        assert parse_label_map("a=b,c=d") == {"a": "b", "c": "d"}

    def test_spaces_around_names_and_values_are_trimmed(self) -> None:
        assert parse_label_map(" key = value , another = test ") == {"key": "value", "another": "test"}

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("app=myapp,env=prod,invalid", "invalid label format: invalid"),
            ("a=b=c", "invalid label format: a=b=c"),
            ("", "empty string provided"),
        ],
        ids=["no equals sign", "two equals signs", "empty"],
    )
    def test_an_invalid_pair_is_an_error_that_quotes_it(self, text: str, error: str) -> None:
        with pytest.raises(LabelError, match=f"^{error}$"):
            parse_label_map(text)


def test_the_selector_of_a_label_map_requires_every_label() -> None:
    assert selector_of({"k8s-app": "konnectivity-server", "a": "b"}) == "a=b,k8s-app=konnectivity-server"


@pytest.mark.parametrize(
    "selector",
    [
        "", "   ", "k8s-app=konnectivity-server,component=proxy", "a==b, c != d", "a=", "a=,b", "a", "!a",
        "a,!b", "a in (b,c)", "a notin (b)", "a in ()", "a in (,b)", "a in (b,)", "in in (in, notin)",
        "a>1,b<2", "example.com/name=x", "a." + "b" * 61 + "=c", "  a  =  b ,\te   in(f , g)",
    ],
)  # fmt: skip
def test_valid_selectors(selector: str) -> None:
    assert is_label_selector(selector)


@pytest.mark.parametrize(
    "selector",
    [
        "*x*", ",", "a,", ",a", "a=b,,c", "a b", "a=b c", "a in", "a in b", "a in (b", "a in b)", "ain (b)",
        "a in (b c)", "a in (b=c)", "!", "!!a", "!a=b", "a=!b", "=b", "a=(b)", "(a)", "a>", "a>x", "a<1.5",
        "-a", "a=-b", "a!b", "a/b/c", "/a", "a/", "Upper.Case/a", "a=" + "b" * 64, "a" * 64, "é=1", "a=b\x1c",
        "x" * 254 + "/a",
    ],
)  # fmt: skip
def test_invalid_selectors(selector: str) -> None:
    assert not is_label_selector(selector)


@given(st.one_of(st.text(), st.text(alphabet="ab=!,()<> in1")))
def test_any_text_is_checked_without_an_error(text: str) -> None:
    is_label_selector(text)
