"""Compares our reading of YAML scalars with the rules, and with the real sigs.k8s.io/yaml."""

from __future__ import annotations

import json
import random
import subprocess

import pytest

from bootbridge.bootstrap.render import go_yaml, kasconfig
from bootbridge.bootstrap.render.kasconfig import ConfigFile
from bootbridge.errors import OperatorError
from tests.support.process_program import PEERS

SCALARS = {
    "1:30": "1:30",
    "190:20:30": "190:20:30",
    "0o17": 15,
    "017": 15,
    "08": 8,
    "0x1F": 31,
    "-0x1F": -31,
    "0b101": 5,
    "1e3": 1000,
    "1.5e3": 1500,
    "+12": 12,
    "1_000": 1000,
    "1.": 1,
    ".5": 0.5,
    "1e30": 1e30,
    "1e700": "1e700",
    "12345678901234567890": 12345678901234567890,
    "99999999999999999999": 100000000000000000000,
    "123456789012345678901": 123456789012345680000,
    "-9223372036854775809": -9223372036854776000,
    "2026-01-02": "2026-01-02",
    "2026-01-02T03:04:05Z": "2026-01-02T03:04:05Z",
    "2026-01-02 03:04:05": "2026-01-02 03:04:05",
    "y": True,
    "N": False,
    "on": True,
    "Off": False,
    "~": None,
    "": None,
    "null": None,
    "0o8": "0o8",
    "1__2": 12,
    "0.0.0.0:6443": "0.0.0.0:6443",
    "-": "-",
    "+": "+",
    "=": "=",
    "text": "text",
}
ALPHABET = "0123456789_+-.:eExXobBaAfyYnN~TZ"


@pytest.mark.parametrize("text", [each for each in SCALARS if each not in ("-", "=")])
def test_a_plain_scalar_is_read_as_in_go(text: str) -> None:
    found = go_yaml.load(f"key: {text}\n")["key"]

    assert (type(found), found) == (type(SCALARS[text]), SCALARS[text])


def test_quotes_lists_and_merges_are_as_ever() -> None:
    text = "a: &x {b: '1e3', c: [\"017\", 017]}\nd: {<<: *x, e: !!str 5}\n"

    assert go_yaml.load(text) == {
        "a": {"b": "1e3", "c": ["017", 15]},
        "d": {"b": "1e3", "c": ["017", 15], "e": "5"},
    }


@pytest.mark.parametrize("text", [".inf", "-.INF", ".nan"])
def test_numbers_that_json_lacks_are_rejected(text: str) -> None:
    with pytest.raises(OperatorError, match="not representable in JSON"):
        kasconfig.parse(ConfigFile("f", f"a: {text}\n".encode()))


@pytest.mark.interop
def test_the_real_parser_reads_the_same() -> None:
    """Each scalar of the table, and 20,000 random ones."""
    numbers = random.Random(1)
    made = ["".join(numbers.choices(ALPHABET, k=numbers.randint(1, 8))) for _ in range(20_000)]
    documents = [f"[{text}]" for text in made if not text.endswith(":") and ": " not in text]
    documents += [f"key: {text}" for text in SCALARS]
    done = subprocess.run(
        [PEERS / "yaml-to-json"], input="\0".join(documents), capture_output=True, text=True, check=True
    )

    differences = []
    for document, line in zip(documents, done.stdout.splitlines(), strict=True):
        try:
            ours = json.dumps(go_yaml.load(document), allow_nan=False, separators=(",", ":"))
        except Exception:
            ours = "error"
        if ours != line and ("error" in (ours, line) or json.loads(ours) != json.loads(line)):
            differences.append((document, ours, line))
    assert differences == []
