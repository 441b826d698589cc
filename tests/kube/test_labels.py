"""Label maps (`--lease-label`) and label selectors (`--lease-label-selector`)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bootbridge.kube.labels import LabelError, Operator, Requirement, Selector, parse_label_map


class TestLabelMap:
    """acceptance list, "labels parse"."""

    def test_pairs_are_split_at_commas(self) -> None:
        assert parse_label_map("a=b,c=d") == {"a": "b", "c": "d"}

    def test_spaces_around_names_and_values_are_trimmed(self) -> None:
        assert parse_label_map(" key = value , another = test ") == {"key": "value", "another": "test"}

    def test_a_missing_equals_sign_is_an_error_that_quotes_the_pair(self) -> None:
        with pytest.raises(LabelError, match=r"^invalid label format: invalid$"):
            parse_label_map("app=myapp,env=prod,invalid")

    def test_a_second_equals_sign_is_an_error(self) -> None:
        with pytest.raises(LabelError, match=r"^invalid label format: a=b=c$"):
            parse_label_map("a=b=c")

    def test_the_empty_string_is_an_error(self) -> None:
        with pytest.raises(LabelError, match=r"^empty string provided$"):
            parse_label_map("")


LABELS = {"a": "b", "c": "x", "e": "g", "n": "7", "example.com/role": "proxy", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "takes"),
    [
        ("", True),
        ("  ", True),
        ("a=b", True),
        ("a==b", True),
        ("a=z", False),
        ("missing=b", False),
        ("a!=z", True),
        ("a!=b", False),
        ("missing!=b", True),
        ("e in (f,g)", True),
        ("e in (f)", False),
        ("missing in (f)", False),
        ("e notin (f)", True),
        ("e notin (f,g)", False),
        ("missing notin (f)", True),
        ("a", True),
        ("missing", False),
        ("!a", False),
        ("!missing", True),
        ("n>6", True),
        ("n>7", False),
        ("n<8", True),
        ("a>1", False),
        ("missing<1", False),
        ("empty=", True),
        ("empty in ()", True),
        ("a=,c=x", False),
        ("e in (f,,g)", True),
        ("example.com/role=proxy", True),
        ("a=b,c!=d,e in (f,g),h notin (i),a,!k", True),
        ("a=b,c!=x", False),
        ("  a  =  b ,\te   in(f , g)", True),
        ("in", False),
        ("in in (in)", False),
    ],
)
def test_a_selector_takes_what_its_requirements_all_allow(selector: str, takes: bool) -> None:
    assert Selector.parse(selector).matches(LABELS) is takes


@pytest.mark.parametrize(
    "selector",
    [
        "*x*", ",", "a,", ",a", "a=b,,c", "a b", "a=b c", "a in", "a in b", "a in (b", "a in b)",
        "a in (b c)", "!", "!!a", "!a=b", "a=!b", "=b", "a=(b)", "(a)", "a>", "a>x", "a<1.5", "-a", "a=-b",
        "a/b/c", "/a", "a/", "Upper.Case/a", "a=" + "b" * 64, "a" * 64, "é=1", "a=b\x1c",
    ],
)  # fmt: skip
def test_a_selector_that_cannot_be_understood_is_refused_with_its_text(selector: str) -> None:
    with pytest.raises(LabelError) as refusal:
        Selector.parse(selector)
    assert repr(selector) in str(refusal.value)


words = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True)
names = st.one_of(words, st.builds("example.com/{}".format, words), st.sampled_from(["in", "notin"]))
values = st.one_of(words, st.just(""), st.sampled_from(["in", "notin"]))
requirements = st.one_of(
    st.builds(Requirement, names, st.sampled_from([Operator.EXISTS, Operator.MISSING])),
    st.builds(
        Requirement,
        names,
        st.sampled_from([Operator.IN, Operator.NOT_IN]),
        st.frozensets(values, min_size=1, max_size=4),
    ),
    st.builds(
        lambda key, sign, bound: Requirement(key, sign, frozenset({str(bound)})),
        names,
        st.sampled_from([Operator.GREATER, Operator.LESS]),
        st.integers(0, 10**9),
    ),
)
selectors = st.builds(Selector, st.lists(requirements, max_size=5).map(tuple))


@given(selectors)
@example(Selector((Requirement("in", Operator.IN, frozenset({"in", "notin"})),)))
def test_what_a_selector_prints_parses_to_the_same_selector(selector: Selector) -> None:
    assert Selector.parse(str(selector)) == selector


@given(st.dictionaries(names, words, max_size=5), st.dictionaries(names, words, max_size=5))
def test_the_selector_of_a_label_map_takes_exactly_its_supersets(
    labels: dict[str, str], others: dict[str, str]
) -> None:
    assert Selector.of(labels).matches({**others, **labels})
    assert Selector.of(labels).matches(others) == (labels.items() <= others.items())


@given(st.one_of(st.text(), st.text(alphabet="ab=!,()<> in1")))
def test_any_text_is_a_selector_or_a_label_error(text: str) -> None:
    try:
        selector = Selector.parse(text)
    except LabelError:
        return
    assert Selector.parse(str(selector)) == selector
