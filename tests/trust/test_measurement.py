"""Measurement registers and policies."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from bootbridge.common.documents import convert
from bootbridge.errors import OperatorError
from bootbridge.trust.measurement import (
    Expectation,
    FileRegister,
    MeasurementPolicy,
    Measurements,
    RegisterFailed,
    after_event,
    extended,
)

CLUSTER_ID = bytes.fromhex("128c164378fe8767f998fbdfe4b4d6463ec5ae1b664ea5999bc27417607ae9b6")
AFTER_CLUSTER_ID = "23400370357e846478cce7cc0c76cdfe4da077cc57b36dee0f665ede2c8b3f2f"
AFTER_CLUSTER_ID_384 = (
    "894927a8d9fda1b23231f7a1a9505fd67f41cfe6b8cb66e7a15fcc04529aeae2708795d00dbfc191bf1b5d88a97f55d9"
)
CHAIN_ID = bytes.fromhex("5eb06b4e29a38dc40e9e61dc98e1c4e88af644ce8ac7431be2448b968595fc05")
AFTER_CHAIN_ID = "66a184f06469abe0fd32644d280c5f3db846136251914cea65d6f0347ce2f1ff"
ZERO = "00" * 32


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


@pytest.mark.parametrize(
    ("size", "data", "expected"),
    [
        (32, CLUSTER_ID, AFTER_CLUSTER_ID),
        (48, CLUSTER_ID, AFTER_CLUSTER_ID_384),
        (32, CHAIN_ID, AFTER_CHAIN_ID),
    ],
    ids=["SHA-256", "SHA-384", "chain"],
)
def test_the_vectors_of_a_locked_node(size: int, data: bytes, expected: str) -> None:
    assert after_event(bytes(size), data).hex() == expected


@pytest.mark.parametrize(("old", "digest"), [(32, 48), (48, 32), (20, 20), (0, 0)])
def test_a_digest_of_another_hash_than_the_registers_is_an_error(old: int, digest: int) -> None:
    with pytest.raises(ValueError, match="do not match"):
        extended(bytes(old), bytes(digest))


async def test_a_file_register_is_extended_from_zero_like_a_pcr(tmp_path: Path) -> None:
    register = FileRegister(tmp_path / "node" / "register")
    assert await register.read() == bytes(32)
    await register.extend(CLUSTER_ID)
    assert (await register.read()).hex() == AFTER_CLUSTER_ID
    await register.extend(CLUSTER_ID)
    assert await register.read() == after_event(bytes.fromhex(AFTER_CLUSTER_ID), CLUSTER_ID)


async def test_a_file_register_persists_and_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "node" / "register"
    await FileRegister(path).extend(CLUSTER_ID)
    assert (await FileRegister(path).read()).hex() == AFTER_CLUSTER_ID
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert names_in(path.parent) == ["register"]


async def test_reading_a_register_creates_no_file(tmp_path: Path) -> None:
    await FileRegister(tmp_path / "node" / "register").read()
    assert names_in(tmp_path) == []


async def test_a_damaged_file_register_is_an_error(tmp_path: Path) -> None:
    """An empty file would otherwise unlock a locked node."""
    path = tmp_path / "register"
    for content in (b"", bytes(31), bytes(33)):
        path.write_bytes(content)
        with pytest.raises(RegisterFailed, match="reboot"):
            await FileRegister(path).read()
        with pytest.raises(RegisterFailed, match="reboot"):
            await FileRegister(path).extend(CLUSTER_ID)
        assert path.read_bytes() == content


async def test_an_unreadable_register_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    register = FileRegister(tmp_path / "file" / "register")
    with pytest.raises(RegisterFailed, match="tmpfs"):
        await register.read()
    with pytest.raises(RegisterFailed, match="tmpfs"):
        await register.extend(b"x")


def test_only_listed_registers_are_compared() -> None:
    policy = MeasurementPolicy.of({"15": ZERO})
    comparison = policy.compare({4: b"\1" * 32, 15: bytes(32)})
    assert (comparison.refusals, comparison.warnings) == ((), ())


def test_a_difference_is_reported_with_both_values() -> None:
    policy = MeasurementPolicy.of({"15": Expectation(ZERO)})
    (refusal,) = policy.compare({15: b"\xab" * 32}).refusals
    assert refusal == f"PCR 15 is {'ab' * 32}, expected {ZERO}"


def test_a_warn_only_difference_is_not_a_refusal() -> None:
    policy = MeasurementPolicy.of({"4": Expectation(ZERO, warn_only=True), "15": ZERO})
    comparison = policy.compare({4: b"\xab" * 32, 15: bytes(32)})
    assert comparison.refusals == ()
    assert comparison.warnings == (f"PCR 4 is {'ab' * 32}, expected {ZERO}",)


def test_a_missing_register_is_a_difference() -> None:
    policy = MeasurementPolicy.of({"4": Expectation(ZERO, warn_only=True), "15": ZERO})
    comparison = policy.compare({})
    assert comparison.refusals == (f"PCR 15 missing, expected {ZERO}",)
    assert comparison.warnings == (f"PCR 4 missing, expected {ZERO}",)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "measurements: invalid type: list (must be a mapping)"),
        ("00", "measurements: invalid type: string (must be a mapping)"),
        ({"24": ZERO}, "measurements: 24: invalid register '24' (registers are 0 to 23)"),
        ({"-1": ZERO}, "invalid register '-1'"),
        ({"x": ZERO}, "invalid register 'x'"),
        ({"²": ZERO}, "invalid register '²'"),
        ({"015": ZERO}, "invalid register '015'"),
        ({"15": "00"}, "measurements: 15: invalid register value '00' (64 hexadecimal digits"),
        ({"15": "zz" * 32}, "invalid register value"),
        ({"15": 0}, "measurements: 15: invalid type: number (must be a string, or a mapping)"),
        ({"15": {}}, "measurements: 15.expected: required field missing"),
        (
            {"15": {"expected": ZERO, "warnonly": True}},
            'measurements: 15.warnonly: unknown field (did you mean "warnOnly"?)',
        ),
        (
            {"15": {"expected": ZERO, "warnOnly": "no"}},
            "measurements: 15.warnOnly: invalid type: string (must be true or false)",
        ),
    ],
)
def test_an_invalid_policy_is_reported_with_its_field(document: Any, message: str) -> None:
    with pytest.raises(OperatorError) as raised:
        convert(Measurements, document, "measurements")  # type: ignore[arg-type]
    assert message in str(raised.value)
