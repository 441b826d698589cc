"""Templates of the two keys of an attestation; a TPM derives the same key from a template every time.

The endorsement key (EK) identifies the TPM and only decrypts. Its templates are the TCG's defaults, which
the manufacturer's certificate refers to. The attestation key (AK) is restricted: it signs only structures
that the TPM generated. Both are primary keys of the endorsement hierarchy: nothing is stored in the TPM, and
TPM2_Clear does not change the identity.
"""

from __future__ import annotations

from bootbridge.trust.tpm.structures import EccPoint, ObjectAttribute, PublicArea, RsaModulus

_FROM_THIS_TPM = (
    ObjectAttribute.FIXED_TPM | ObjectAttribute.FIXED_PARENT | ObjectAttribute.SENSITIVE_DATA_ORIGIN
)

# TPM2_PolicySecret(TPM_RH_ENDORSEMENT), from the TCG EK credential profile.
_EK_POLICY = bytes.fromhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa")
_EK_ATTRIBUTES = (
    _FROM_THIS_TPM | ObjectAttribute.ADMIN_WITH_POLICY | ObjectAttribute.RESTRICTED | ObjectAttribute.DECRYPT
)
EK_AES_BITS = 128

EK_RSA = PublicArea(_EK_ATTRIBUTES, RsaModulus(2048, bytes(256)), _EK_POLICY, EK_AES_BITS)
EK_ECC = PublicArea(_EK_ATTRIBUTES, EccPoint(bytes(32), bytes(32)), _EK_POLICY, EK_AES_BITS)

# NV indices of the manufacturer's certificates, and the usual persistent handles of the keys.
EK_RSA_CERTIFICATE, EK_ECC_CERTIFICATE = 0x01C00002, 0x01C0000A
EK_RSA_PERSISTENT, EK_ECC_PERSISTENT = 0x81010001, 0x81010002

# Attributes that an AK must and must not have: an unrestricted key would sign a forged quote.
AK_REQUIRED = _FROM_THIS_TPM | ObjectAttribute.RESTRICTED | ObjectAttribute.SIGN
AK_FORBIDDEN = ObjectAttribute.DECRYPT

# `unique` distinguishes this key from other programs' attestation keys on the same TPM.
_AK_LABEL = EccPoint(b"bootbridge attestation key".ljust(32, b"\0"), bytes(32))
AK = PublicArea(
    AK_REQUIRED | ObjectAttribute.USER_WITH_AUTH | ObjectAttribute.NO_DA,
    _AK_LABEL,
    ecdsa_sha256=True,
)
