"""The two keys of an attestation, as templates from which a TPM makes the same key every time.

The endorsement key (EK) is the chip's name: the TCG's standard templates, so that the manufacturer's
certificate fits. It only decrypts. The attestation key (AK) is ours and only signs what the TPM itself
says. Both are primary keys of the endorsement hierarchy: nothing is stored, and clearing the TPM's
owner does not change who the machine is.
"""

from __future__ import annotations

from bootbridge.trust.tpm.structures import Attribute, EccPoint, Public, RsaModulus

_FROM_THIS_CHIP = Attribute.FIXED_TPM | Attribute.FIXED_PARENT | Attribute.SENSITIVE_DATA_ORIGIN

# TPM2_PolicySecret(TPM_RH_ENDORSEMENT), from the TCG EK credential profile.
_EK_POLICY = bytes.fromhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa")
_EK_ATTRIBUTES = _FROM_THIS_CHIP | Attribute.ADMIN_WITH_POLICY | Attribute.RESTRICTED | Attribute.DECRYPT
EK_AES_BITS = 128

EK_RSA = Public(_EK_ATTRIBUTES, RsaModulus(2048, bytes(256)), _EK_POLICY, EK_AES_BITS)
EK_ECC = Public(_EK_ATTRIBUTES, EccPoint(bytes(32), bytes(32)), _EK_POLICY, EK_AES_BITS)

# Where the manufacturer puts the certificate, and where tools like to keep the key itself.
EK_RSA_CERTIFICATE, EK_ECC_CERTIFICATE = 0x01C00002, 0x01C0000A
EK_RSA_PERSISTENT, EK_ECC_PERSISTENT = 0x81010001, 0x81010002

# What a key must and must not be able to do for its quotes to mean anything: one that is not restricted
# signs a made-up quote as readily as a true one.
AK_MUST = _FROM_THIS_CHIP | Attribute.RESTRICTED | Attribute.SIGN
AK_MUST_NOT = Attribute.DECRYPT

# Its own label keeps this key apart from other programs' attestation keys on the same chip.
_AK_LABEL = EccPoint(b"bootbridge attestation key".ljust(32, b"\0"), bytes(32))
AK = Public(
    AK_MUST | Attribute.USER_WITH_AUTH | Attribute.NO_DA,
    _AK_LABEL,
    ecdsa_sha256=True,
)
