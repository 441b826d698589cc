"""Quotes without a TPM: the same format as a TPM's, signed with a key of this process.

For tests that need thousands of machines, or machines that lie. A verifier that has the key enrolled
cannot detect the difference, which is why enrolment has to read the key from the chip.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.serialization import Encoding

from bootbridge.trust.evidence import PROGRAM, Requester, statement_tree
from bootbridge.trust.evidence.tpm import FORMAT, PcrValue, TpmChallenge, TpmEvidence, TpmIssuer
from bootbridge.trust.identity import EvidenceKind, key_identity
from bootbridge.trust.measurement import after_event
from bootbridge.trust.tpm.codec import Reader, sized, u8, u16, u32
from bootbridge.trust.tpm.commands import RH_ENDORSEMENT
from bootbridge.trust.tpm.connection import LoadedKey
from bootbridge.trust.tpm.credential import kdfa, kdfe
from bootbridge.trust.tpm.structures import (
    ALG_ECDSA,
    ALG_SHA256,
    ATTEST_QUOTE,
    GENERATED_VALUE,
    EccPoint,
    ObjectAttribute,
    PublicArea,
    write_selection,
)
from bootbridge.trust.tpm.templates import AK

EndorsementPrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def _zeros() -> dict[int, bytes]:
    return {index: bytes(32) for index in range(24)}


@dataclass
class SoftwareTpm:
    """An `Issuer` whose quotes can be changed and forged by tests."""

    pcrs: dict[int, bytes] = field(default_factory=_zeros)
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    attributes: ObjectAttribute = AK.attributes
    endorsement_key: EndorsementPrivateKey | None = None
    endorsement_certificate: x509.Certificate | None = None
    magic: int = GENERATED_VALUE
    attest_type: int = ATTEST_QUOTE
    bank: int = ALG_SHA256
    kind: str = "tpm"

    @property
    def public(self) -> PublicArea:
        numbers = self.key.public_key().public_numbers()
        point = EccPoint(numbers.x.to_bytes(32, "big"), numbers.y.to_bytes(32, "big"))
        return PublicArea(self.attributes, point, ecdsa_sha256=True)

    @property
    def identity(self) -> str:
        return key_identity(EvidenceKind.TPM, self.key.public_key())

    def measure(self, index: int, data: bytes) -> None:
        self.pcrs[index] = after_event(self.pcrs[index], data)

    async def issue(self, binding: bytes, requester: Requester = PROGRAM) -> bytes:
        return self.document(binding).encode()

    def document(self, binding: bytes) -> TpmEvidence:
        """The evidence before it is encoded, for tests that change it."""
        root, (inclusion,) = statement_tree.build([binding])
        attest = self.attest(root)
        certificate = self.endorsement_certificate
        return TpmEvidence(
            attest,
            self.sign(attest),
            self.public.encode(),
            tuple(PcrValue(index, value) for index, value in sorted(self.pcrs.items())),
            certificate.public_bytes(Encoding.DER) if certificate else b"",
            FORMAT,
        ).for_session(inclusion)

    def attest(self, root: bytes) -> bytes:
        signer = self.public.qualified_name(RH_ENDORSEMENT)
        head = u32(self.magic) + u16(self.attest_type) + sized(signer) + sized(root)
        clock = bytes(8) + u32(1) + u32(0) + u8(1)
        digest = hashlib.sha256(b"".join(value for _, value in sorted(self.pcrs.items()))).digest()
        return head + clock + bytes(8) + write_selection(self.bank, self.pcrs) + sized(digest)

    def sign(self, attest: bytes) -> bytes:
        r, s = decode_dss_signature(self.key.sign(attest, ec.ECDSA(hashes.SHA256())))
        return u16(ALG_ECDSA) + u16(ALG_SHA256) + sized(r.to_bytes(32, "big")) + sized(s.to_bytes(32, "big"))

    async def answer(self, binding: bytes, challenge: bytes, requester: Requester = PROGRAM) -> bytes:
        """Like TPM2_ActivateCredential; asserts where a TPM would fail."""
        asked = TpmChallenge.decode(challenge)
        seed = self._seed(asked.encrypted_secret)
        reader = Reader(asked.credential, "credential")
        integrity, identity = reader.sized(), reader.rest()
        mac = hmac.digest(kdfa(seed, b"INTEGRITY", b"", b"", 256), identity + self.public.name, "sha256")
        assert mac == integrity, "the credential is for another key"
        plain = Reader(_decrypt_cfb(kdfa(seed, b"STORAGE", self.public.name, b"", 128), identity), "secret")
        secret = plain.sized()
        plain.end()
        return secret

    def _seed(self, encrypted: bytes) -> bytes:
        if isinstance(self.endorsement_key, rsa.RSAPrivateKey):
            oaep = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), b"IDENTITY\0")
            return self.endorsement_key.decrypt(encrypted, oaep)
        assert self.endorsement_key is not None
        reader = Reader(encrypted, "point")
        x, y = reader.sized(), reader.sized()
        theirs = ec.EllipticCurvePublicNumbers(
            int.from_bytes(x, "big"), int.from_bytes(y, "big"), ec.SECP256R1()
        ).public_key()
        ours = self.endorsement_key.public_key().public_numbers().x.to_bytes(32, "big")
        return kdfe(self.endorsement_key.exchange(ec.ECDH(), theirs), b"IDENTITY\0", x, ours, 256)


class SoftwareConnection:
    """The commands of a `TpmConnection` that a quote needs."""

    def __init__(self, tpm: SoftwareTpm) -> None:
        self._tpm = tpm

    def endorsement_certificate(self) -> bytes:
        return b""

    @contextmanager
    def attestation_key(self) -> Iterator[LoadedKey]:
        yield LoadedKey(1, self._tpm.public)

    def read_pcrs(self, indices: Sequence[int]) -> dict[int, bytes]:
        return {index: self._tpm.pcrs[index] for index in indices}

    def quote(self, key: LoadedKey, data: bytes, indices: Sequence[int]) -> tuple[bytes, bytes]:
        attest = self._tpm.attest(data)
        return attest, self._tpm.sign(attest)


@dataclass
class SlowDevice:
    """A `TpmDevice` whose every use takes this long, by the clock of the event loop."""

    tpm: SoftwareTpm
    seconds: float
    uses: int = 0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def use(self, work: Callable[[Any], Any]) -> Any:
        async with self._lock:
            self.uses += 1
            await asyncio.sleep(self.seconds)
            return work(SoftwareConnection(self.tpm))

    def issuer(self) -> TpmIssuer:
        return TpmIssuer(self)  # type: ignore[arg-type]


def _decrypt_cfb(key: bytes, data: bytes) -> bytes:
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    out, previous = b"", bytes(16)
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        out += bytes(a ^ b for a, b in zip(block.update(previous), part, strict=False))
        previous = part
    return out
