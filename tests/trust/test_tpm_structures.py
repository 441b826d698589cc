"""TPM structures are parsed strictly: any bytes give a value or one type of error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bootbridge.trust.tpm import commands
from bootbridge.trust.tpm.codec import MalformedTpmData, Reader, sized, u16, u32
from bootbridge.trust.tpm.return_codes import TpmError, base_code, describe
from bootbridge.trust.tpm.structures import (
    EccPoint,
    EcdsaSignature,
    ObjectAttribute,
    PcrSelection,
    PublicArea,
    Quote,
    RsaModulus,
    read_selections,
    write_selection,
)
from bootbridge.trust.tpm.templates import AK, EK_ECC, EK_RSA
from tests.support.software_tpm import SoftwareTpm

CHIP = SoftwareTpm()
QUOTE = CHIP.attest(bytes(range(32)))
SIGNATURE = CHIP.sign(QUOTE)

coordinates = st.binary(max_size=66)
publics = st.builds(
    PublicArea,
    st.integers(0, 2**32 - 1).map(ObjectAttribute),
    st.builds(EccPoint, coordinates, coordinates)
    | st.builds(RsaModulus, st.integers(0, 65535), st.binary(max_size=512)),
    st.binary(max_size=64),
    st.sampled_from([0, 128, 256]),
    st.booleans(),
)


def test_the_standard_templates_are_encoded_as_in_the_tcg_specification() -> None:
    rsa = "0001000b000300b20020837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa"
    assert EK_RSA.encode().hex() == rsa + "00060080004300100800000000000100" + "00" * 256
    ecc = rsa.replace("0001000b", "0023000b", 1)
    assert EK_ECC.encode().hex() == ecc + "0006008000430010000300100020" + "00" * 32 + "0020" + "00" * 32


@given(publics)
def test_a_public_area_round_trip(public: PublicArea) -> None:
    assert PublicArea.parse(public.encode()) == public


@given(st.binary(max_size=200))
@example(AK.encode())
@example(EK_RSA.encode())
def test_a_parsed_public_area_is_encoded_identically(data: bytes) -> None:
    """Its name is a hash of the encoding, so there must be exactly one encoding."""
    try:
        public = PublicArea.parse(data)
    except MalformedTpmData:
        return
    assert public.encode() == data


@given(st.lists(st.integers(0, 23), unique=True).map(sorted))
def test_a_pcr_selection_round_trip(indices: list[int]) -> None:
    reader = Reader(write_selection(11, indices), "selection")
    assert read_selections(reader) == (PcrSelection(11, tuple(indices)),)
    reader.end()


PARSERS: list[tuple[Callable[[bytes], object], bytes]] = [
    (PublicArea.parse, CHIP.public.encode()),
    (Quote.parse, QUOTE),
    (EcdsaSignature.parse, SIGNATURE),
]


@pytest.mark.parametrize(("parse", "true"), PARSERS, ids=["public", "quote", "signature"])
def test_truncated_and_trailing_bytes_are_refused(parse: Callable[[bytes], object], true: bytes) -> None:
    parse(true)
    for size in range(len(true)):
        with pytest.raises(MalformedTpmData):
            parse(true[:size])
    with pytest.raises(MalformedTpmData, match="1 trailing bytes"):
        parse(true + b"\0")


@pytest.mark.parametrize(("parse", "true"), PARSERS, ids=["public", "quote", "signature"])
@settings(max_examples=40)
@given(data=st.data())
def test_damaged_bytes_give_a_value_or_one_type_of_error(
    parse: Callable[[bytes], object], true: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(true)))
    damaged = true[:at] + data.draw(st.binary(max_size=40)) + true[data.draw(st.integers(at, len(true))) :]
    try:
        found = parse(damaged)
        if isinstance(found, PublicArea):
            found.key()
    except MalformedTpmData:
        pass


def test_a_point_that_is_not_on_the_curve_is_refused() -> None:
    public = replace(CHIP.public, unique=EccPoint(bytes(32), b"\1" * 32))
    with pytest.raises(MalformedTpmData, match="invalid key"):
        public.key()


@pytest.mark.parametrize("answer", [b"", bytes(9), bytes(10), u16(0x8001) + u32(11) + u32(0)])
def test_a_response_of_the_wrong_length_is_refused(answer: bytes) -> None:
    with pytest.raises(MalformedTpmData):
        commands.parse_response(commands.pcr_read(11, [0]), answer)


ANSWERS: list[tuple[commands.TpmCommand, Callable[[commands.TpmResponse], object]]] = [
    (commands.create_primary(commands.RH_ENDORSEMENT, AK), commands.parse_public),
    (commands.quote(1, b"", [0]), commands.parse_quote_response),
    (commands.pcr_read(11, [0]), lambda response: commands.read_digests(response.parameters)),
    (commands.nv_read_public(1), commands.parse_nv_size),
    (commands.get_handles(0), commands.parse_handles),
    (commands.get_properties(0, 1), commands.parse_properties),
    (commands.get_pcr_banks(), lambda response: read_selections(response.parameters)),
]


@pytest.mark.parametrize(("command", "parse_response"), ANSWERS, ids=[str(each.code) for each, _ in ANSWERS])
@settings(max_examples=40)
@given(tag=st.sampled_from([0x8001, 0x8002]), body=st.binary(max_size=80))
def test_any_response_gives_a_value_or_one_type_of_error(
    command: commands.TpmCommand,
    parse_response: Callable[[commands.TpmResponse], object],
    tag: int,
    body: bytes,
) -> None:
    answer = u16(tag) + u32(10 + len(body)) + u32(0) + body
    try:
        parse_response(commands.parse_response(command, answer))
    except MalformedTpmData:
        pass


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        (0x101, 0x101, "failure mode"),
        (0x922, 0x922, "busy"),
        (0x902, 0x902, "out of object memory"),
        (0x18B, 0x08B, "no such handle"),
        (0x28B, 0x08B, "no such handle"),
        (0x1CB, 0x08B, "no such handle"),
        (0x9A2, 0x0A2, "authorisation failed"),
        (0xB0143, 0x143, "unknown command"),
        (0x1FF, 0x0BF, "vendor-specific or unknown error"),
    ],
)
def test_a_return_code_is_described_in_both_formats(code: int, error: int, text: str) -> None:
    assert base_code(code) == error
    assert text in describe(code)
    with pytest.raises(TpmError, match=r"TPM command TPM2_NVReadPublic failed: .*") as raised:
        commands.parse_response(commands.nv_read_public(1), u16(0x8001) + u32(10) + u32(code))
    assert raised.value.code == error


def test_a_buffer_above_the_size_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(MalformedTpmData, match="buffer of 5 bytes"):
        Reader(sized(b"12345"), "thing").sized(4)
