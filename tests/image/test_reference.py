"""Names of images: accepted as registries and runtimes do, refused with the part that is wrong."""

from __future__ import annotations

import pytest

from bootbridge.image.reference import NAME_BYTES_MAX, problem_of


@pytest.mark.parametrize(
    "reference",
    [
        "x:1",
        "localhost/bootbridge:0.2.0",
        "localhost:5000/bootbridge:0.2.0",
        "Registry.Example/team/boot__bridge-node:v1_2.3-rc",
        "[fd00::1]:5000/bootbridge:latest",
        "a" * NAME_BYTES_MAX + ":" + "t" * 128,
    ],
)
def test_a_name_that_a_registry_accepts_has_no_problem(reference: str) -> None:
    assert problem_of(reference) == ""


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("bootbridge", "it has no tag"),
        ("localhost:5000/bootbridge", "it has no tag"),
        ("x@sha256:" + "0" * 64, "a digest is not a name"),
        ("x:", "invalid tag ''"),
        ("x:-1", "invalid tag '-1'"),
        ("x:" + "t" * 129, "invalid tag"),
        ("x:1\n", "invalid tag"),
        ("Boot Bridge:1", "invalid name 'Boot Bridge'"),
        ("bootBridge:1", "invalid name 'bootBridge'"),
        ("a" * (NAME_BYTES_MAX + 1) + ":1", "invalid name"),
        ("docker://x/y:1", "invalid name 'docker://x/y'"),
        ("x//y:1", "invalid name 'x//y'"),
        ("x.:1", "invalid name 'x.'"),
        (":1", "invalid name ''"),
    ],
)
def test_another_name_is_refused_with_the_part_that_is_wrong(reference: str, problem: str) -> None:
    assert problem_of(reference).startswith(problem)
