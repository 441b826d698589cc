"""TPM2_MakeCredential in software, for the verifier (TPM 2.0 part 1, "Credential Protection").

The secret can be decrypted only by a TPM that holds the endorsement key *and* has loaded an object with
exactly the given Name. A correct answer proves that both are in the same TPM.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from bootbridge.trust.tpm.codec import sized, u32
from bootbridge.trust.tpm.templates import EK_AES_BITS

EndorsementKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey

_LABEL = b"IDENTITY\0"
_SEED_BITS = 256
_BLOCK_BYTES = 16


@dataclass(frozen=True)
class Credential:
    """The parameters of TPM2_ActivateCredential."""

    blob: bytes
    encrypted_secret: bytes


def make_credential(endorsement_key: EndorsementKey, name: bytes, secret: bytes) -> Credential:
    """`name` is the Name of the object that must be in the same TPM; raises ValueError for other curves."""
    seed, encrypted_seed = _shared_seed(endorsement_key)
    key = kdfa(seed, b"STORAGE", name, b"", EK_AES_BITS)
    identity = _aes_cfb(key, sized(secret))
    integrity_key = kdfa(seed, b"INTEGRITY", b"", b"", _SEED_BITS)
    integrity = hmac.digest(integrity_key, identity + name, "sha256")
    return Credential(sized(integrity) + identity, encrypted_seed)


def _shared_seed(key: EndorsementKey) -> tuple[bytes, bytes]:
    """Returns (seed, seed encrypted to the endorsement key)."""
    if isinstance(key, rsa.RSAPublicKey):
        seed = secrets.token_bytes(_SEED_BITS // 8)
        oaep = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), _LABEL)
        return seed, key.encrypt(seed, oaep)
    if not isinstance(key.curve, ec.SECP256R1):
        raise ValueError(f"curve {key.curve.name} (accepted: P-256, RSA)")
    ephemeral = ec.generate_private_key(ec.SECP256R1())
    shared = ephemeral.exchange(ec.ECDH(), key)
    ours, theirs = _coordinates(ephemeral.public_key()), _coordinates(key)
    return kdfe(shared, _LABEL, ours[0], theirs[0], _SEED_BITS), sized(ours[0]) + sized(ours[1])


def _coordinates(key: ec.EllipticCurvePublicKey) -> tuple[bytes, bytes]:
    numbers = key.public_numbers()
    return numbers.x.to_bytes(32, "big"), numbers.y.to_bytes(32, "big")


def kdfa(key: bytes, label: bytes, context_u: bytes, context_v: bytes, bits: int) -> bytes:
    """KDFa: SP 800-108 in counter mode with HMAC-SHA256, one iteration."""
    data = u32(1) + label + b"\0" + context_u + context_v + u32(bits)
    return hmac.digest(key, data, "sha256")[: bits // 8]


def kdfe(shared: bytes, label: bytes, party_u: bytes, party_v: bytes, bits: int) -> bytes:
    """KDFe: SP 800-56A's one-step KDF with SHA-256, one iteration; `label` is zero-terminated."""
    return hashlib.sha256(u32(1) + shared + label + party_u + party_v).digest()[: bits // 8]


def _aes_cfb(key: bytes, plain: bytes) -> bytes:
    """AES-CFB with a zero IV: the seed is random, so each key is used once."""
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    out, previous = bytearray(), bytes(_BLOCK_BYTES)
    for start in range(0, len(plain), _BLOCK_BYTES):
        part = plain[start : start + _BLOCK_BYTES]
        previous = bytes(a ^ b for a, b in zip(block.update(previous), part, strict=False))
        out += previous
    return bytes(out)
