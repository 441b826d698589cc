"""TPM structures that both sides of an attestation parse: public areas, quotes, signatures, PCR selections.

The verifier receives them from an untrusted peer. Parsing is strict: known algorithms only, every length
bounded, no trailing bytes. Parsing and encoding again gives the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from bootbridge.trust.tpm.codec import MalformedTpmData, Reader, sized, u8, u16, u32

ALG_RSA, ALG_AES, ALG_SHA256, ALG_SHA384 = 0x0001, 0x0006, 0x000B, 0x000C
ALG_NULL, ALG_ECDSA, ALG_ECC, ALG_CFB = 0x0010, 0x0018, 0x0023, 0x0043
CURVE_P256 = 0x0003
# TPM_GENERATED_VALUE, "\xffTCG": a restricted key signs no external data that starts with it.
GENERATED_VALUE = 0xFF544347
ATTEST_QUOTE = 0x8018

_DIGEST_BYTES_MAX = 64
_NAME_BYTES_MAX = 2 + _DIGEST_BYTES_MAX
_RSA_BYTES_MAX = 512
_COORDINATE_BYTES_MAX = 66
_SELECTIONS_MAX = 16
_SELECT_BYTES = 3
_SELECT_BYTES_MAX = 4
_RSA_DEFAULT_EXPONENT = 65537
# TPMS_CLOCK_INFO and firmwareVersion: not evaluated.
_CLOCK_BYTES, _FIRMWARE_BYTES = 8 + 4 + 4 + 1, 8


class ObjectAttribute(IntFlag):
    """TPMA_OBJECT: permitted uses and origin of a key."""

    FIXED_TPM = 1 << 1
    FIXED_PARENT = 1 << 4
    SENSITIVE_DATA_ORIGIN = 1 << 5
    USER_WITH_AUTH = 1 << 6
    ADMIN_WITH_POLICY = 1 << 7
    NO_DA = 1 << 10
    RESTRICTED = 1 << 16
    DECRYPT = 1 << 17
    SIGN = 1 << 18


@dataclass(frozen=True)
class PcrSelection:
    """TPMS_PCR_SELECTION: PCRs of one bank."""

    algorithm: int
    indices: tuple[int, ...]


def write_selection(algorithm: int, indices: Iterable[int]) -> bytes:
    """Encodes a TPML_PCR_SELECTION with one bank."""
    bits = sum(1 << index for index in indices)
    return u32(1) + u16(algorithm) + u8(_SELECT_BYTES) + bits.to_bytes(_SELECT_BYTES, "little")


def read_selections(reader: Reader) -> tuple[PcrSelection, ...]:
    count = reader.u32()
    if count > _SELECTIONS_MAX:
        raise reader.malformed(f"{count} PCR banks (at most {_SELECTIONS_MAX})")
    return tuple(_read_selection(reader) for _ in range(count))


def _read_selection(reader: Reader) -> PcrSelection:
    algorithm, size = reader.u16(), reader.u8()
    if size > _SELECT_BYTES_MAX:
        raise reader.malformed(f"PCR selection of {size} bytes (at most {_SELECT_BYTES_MAX})")
    bits = int.from_bytes(reader.take(size), "little")
    return PcrSelection(algorithm, tuple(index for index in range(8 * size) if bits >> index & 1))


@dataclass(frozen=True)
class EccPoint:
    """TPMS_ECC_POINT; in a template it distinguishes primary keys."""

    x: bytes
    y: bytes


@dataclass(frozen=True)
class RsaModulus:
    bits: int
    modulus: bytes


@dataclass(frozen=True)
class PublicArea:
    """TPMT_PUBLIC of an RSA or P-256 key."""

    attributes: ObjectAttribute
    unique: EccPoint | RsaModulus
    policy: bytes = b""
    # The symmetric algorithm of a storage key, AES in CFB mode; 0: not a storage key.
    aes_bits: int = 0
    # Whether the signing scheme is fixed to ECDSA with SHA-256.
    ecdsa_sha256: bool = False

    def encode(self) -> bytes:
        elliptic = isinstance(self.unique, EccPoint)
        head = u16(ALG_ECC if elliptic else ALG_RSA) + u16(ALG_SHA256) + u32(self.attributes)
        aes = u16(ALG_AES) + u16(self.aes_bits) + u16(ALG_CFB) if self.aes_bits else u16(ALG_NULL)
        scheme = u16(ALG_ECDSA) + u16(ALG_SHA256) if self.ecdsa_sha256 else u16(ALG_NULL)
        return head + sized(self.policy) + aes + scheme + self._tail()

    def _tail(self) -> bytes:
        if isinstance(self.unique, EccPoint):
            return u16(CURVE_P256) + u16(ALG_NULL) + sized(self.unique.x) + sized(self.unique.y)
        return u16(self.unique.bits) + u32(0) + sized(self.unique.modulus)

    @classmethod
    def parse(cls, data: bytes) -> PublicArea:
        reader = Reader(data, "public area")
        kind = reader.u16()
        if kind not in (ALG_RSA, ALG_ECC):
            raise reader.malformed(f"unsupported key type {kind:#06x} (accepted: RSA, ECC)")
        if (name_algorithm := reader.u16()) != ALG_SHA256:
            raise reader.malformed(f"unsupported name algorithm {name_algorithm:#06x} (accepted: SHA-256)")
        attributes = ObjectAttribute(reader.u32())
        policy = reader.sized(_DIGEST_BYTES_MAX)
        aes_bits = _read_aes(reader)
        ecdsa_sha256 = _read_scheme(reader)
        unique = _read_point(reader) if kind == ALG_ECC else _read_modulus(reader)
        reader.end()
        return cls(attributes, unique, policy, aes_bits, ecdsa_sha256)

    @property
    def name(self) -> bytes:
        """The object's Name: a hash over the whole public area, attributes included."""
        return u16(ALG_SHA256) + hashlib.sha256(self.encode()).digest()

    def qualified_name(self, hierarchy: int) -> bytes:
        """Returns the Qualified Name as a primary key of this hierarchy; a quote contains its signer's."""
        return u16(ALG_SHA256) + hashlib.sha256(u32(hierarchy) + self.name).digest()

    def key(self) -> ec.EllipticCurvePublicKey | rsa.RSAPublicKey:
        try:
            if isinstance(self.unique, EccPoint):
                x, y = int.from_bytes(self.unique.x, "big"), int.from_bytes(self.unique.y, "big")
                return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
            modulus = int.from_bytes(self.unique.modulus, "big")
            return rsa.RSAPublicNumbers(_RSA_DEFAULT_EXPONENT, modulus).public_key()
        except ValueError as error:
            raise MalformedTpmData(f"malformed public area: invalid key: {error}") from error


def _read_aes(reader: Reader) -> int:
    algorithm = reader.u16()
    if algorithm == ALG_NULL:
        return 0
    bits, mode = reader.u16(), reader.u16()
    if algorithm != ALG_AES or bits not in (128, 256) or mode != ALG_CFB:
        raise reader.malformed(
            f"unsupported cipher {algorithm:#06x}, {bits} bits, mode {mode:#06x} (accepted: AES-CFB)"
        )
    return bits


def _read_scheme(reader: Reader) -> bool:
    scheme = reader.u16()
    if scheme == ALG_NULL:
        return False
    digest = reader.u16()
    if (scheme, digest) != (ALG_ECDSA, ALG_SHA256):
        raise reader.malformed(
            f"unsupported scheme {scheme:#06x} with {digest:#06x} (accepted: ECDSA with SHA-256)"
        )
    return True


def _read_point(reader: Reader) -> EccPoint:
    curve, kdf = reader.u16(), reader.u16()
    if curve != CURVE_P256 or kdf != ALG_NULL:
        raise reader.malformed(
            f"unsupported curve {curve:#06x} with KDF {kdf:#06x} (accepted: P-256, no KDF)"
        )
    return EccPoint(reader.sized(_COORDINATE_BYTES_MAX), reader.sized(_COORDINATE_BYTES_MAX))


def _read_modulus(reader: Reader) -> RsaModulus:
    bits, exponent = reader.u16(), reader.u32()
    if exponent != 0:
        raise reader.malformed(f"unsupported RSA exponent {exponent} (accepted: the default)")
    return RsaModulus(bits, reader.sized(_RSA_BYTES_MAX))


@dataclass(frozen=True)
class Quote:
    """TPMS_ATTEST of a quote: the selected PCRs' digest, and the caller's qualifying data."""

    qualified_signer: bytes
    extra_data: bytes
    selections: tuple[PcrSelection, ...]
    pcr_digest: bytes

    @classmethod
    def parse(cls, data: bytes) -> Quote:
        reader = Reader(data, "quote")
        if (magic := reader.u32()) != GENERATED_VALUE:
            raise reader.malformed(f"magic {magic:#010x}: not generated by a TPM")
        if (kind := reader.u16()) != ATTEST_QUOTE:
            raise reader.malformed(f"not a quote: attestation type {kind:#06x}")
        qualified_signer = reader.sized(_NAME_BYTES_MAX)
        extra_data = reader.sized(_DIGEST_BYTES_MAX)
        reader.take(_CLOCK_BYTES + _FIRMWARE_BYTES)
        selections = read_selections(reader)
        pcr_digest = reader.sized(_DIGEST_BYTES_MAX)
        reader.end()
        return cls(qualified_signer, extra_data, selections, pcr_digest)


@dataclass(frozen=True)
class EcdsaSignature:
    """TPMT_SIGNATURE: ECDSA with SHA-256, the only accepted scheme."""

    r: int
    s: int

    @classmethod
    def parse(cls, data: bytes) -> EcdsaSignature:
        reader = Reader(data, "signature")
        scheme, digest = reader.u16(), reader.u16()
        if (scheme, digest) != (ALG_ECDSA, ALG_SHA256):
            raise reader.malformed(
                f"unsupported scheme {scheme:#06x} with {digest:#06x} (accepted: ECDSA with SHA-256)"
            )
        r, s = reader.sized(_COORDINATE_BYTES_MAX), reader.sized(_COORDINATE_BYTES_MAX)
        reader.end()
        return cls(int.from_bytes(r, "big"), int.from_bytes(s, "big"))
