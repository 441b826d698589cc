"""Keys that follow from others: the published vectors, and no key for a name that is not a disk's."""

from __future__ import annotations

import pytest

from bootbridge.trust.key_hierarchy import KeyRefused, cluster_id, hkdf, measurement_secret, state_disk_key


def counting(first: int, count: int = 32) -> bytes:
    return bytes(range(first, first + count))


@pytest.mark.parametrize(
    ("secret", "salt", "info", "size", "expected"),
    [
        (
            "0b" * 22,
            "000102030405060708090a0b0c",
            "f0f1f2f3f4f5f6f7f8f9",
            42,
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            counting(0x00, 80).hex(),
            counting(0x60, 80).hex(),
            counting(0xB0, 80).hex(),
            82,
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
            "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
        ),
        (
            "0b" * 22,
            "",
            "",
            42,
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
    ids=["A.1", "A.2", "A.3"],
)
def test_the_vectors_of_rfc_5869(secret: str, salt: str, info: str, size: int, expected: str) -> None:
    given = [bytes.fromhex(text) for text in (secret, salt, info)]
    assert hkdf(*given, size).hex() == expected


def test_the_vector_of_the_cluster_id() -> None:
    expected = "128c164378fe8767f998fbdfe4b4d6463ec5ae1b664ea5999bc27417607ae9b6"
    assert cluster_id(counting(0x00), counting(0x20)).hex() == expected


def test_the_vector_of_the_measurement_secret() -> None:
    expected = "4790578891f3fe6cc22cb661ecdc1b7e33121b1287546a52ba33a9136719c213"
    assert measurement_secret(counting(0x40), counting(0x60)).hex() == expected


def test_the_vector_of_the_whole_chain() -> None:
    secret = measurement_secret(bytes(32), bytes(32))
    assert secret.hex() == "54d67b1d917d3464757d9b699f3ee416c209a2270e3876da90535e4108898cdd"
    expected = "5eb06b4e29a38dc40e9e61dc98e1c4e88af644ce8ac7431be2448b968595fc05"
    assert cluster_id(secret, counting(0x20)).hex() == expected


@pytest.mark.parametrize(
    ("byte", "uuid", "expected"),
    [
        (
            0x00,
            "00000000-0000-0000-0000-000000000000",
            "2b5c829f691bfd4232f8aac464bccc07e605c7c8e82cbca09837e86d0b6d0665",
        ),
        (
            0xFF,
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "1484aa39d3415e906e07940ff215d8b1eee705d3027dba93306af4abff4f70be",
        ),
        (
            0xFF,
            "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
            "1484aa39d3415e906e07940ff215d8b1eee705d3027dba93306af4abff4f70be",
        ),
    ],
    ids=["zeros", "lower case", "upper case"],
)
def test_the_vectors_of_disk_keys_in_either_case(byte: int, uuid: str, expected: str) -> None:
    assert state_disk_key(bytes([byte]) * 32, bytes([byte]) * 32, uuid).hex() == expected


@pytest.mark.parametrize(
    "name",
    [
        "measurementSecret",
        "ca_emergency_ssh",
        "clusterID",
        "",
        "00000000000000000000000000000000",
        "{00000000-0000-0000-0000-000000000000}",
        "00000000-0000-0000-0000-000000000000\n",
        " 00000000-0000-0000-0000-000000000000",
        "00000000-0000-0000-0000-00000000000g",
        "0000000０-0000-0000-0000-000000000000",
    ],
)
def test_a_disk_name_that_is_not_a_uuid_is_refused(name: str) -> None:
    """The name is untrusted; it must not derive another key of the hierarchy."""
    with pytest.raises(KeyRefused, match="invalid UUID"):
        state_disk_key(bytes(32), bytes(32), name)


def test_the_cluster_id_depends_on_secret_and_salt() -> None:
    ids = {cluster_id(bytes([a]) * 32, bytes([b]) * 32) for a in (1, 2) for b in (1, 2)}
    assert len(ids) == 4


@pytest.mark.parametrize(("secret", "salt"), [(b"", bytes(32)), (bytes(15), bytes(32)), (bytes(32), b"")])
def test_the_error_about_a_short_secret_or_salt_does_not_quote_it(secret: bytes, salt: bytes) -> None:
    with pytest.raises(KeyRefused, match="too short"):
        cluster_id(secret, salt)
