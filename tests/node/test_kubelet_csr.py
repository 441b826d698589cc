"""The CSR of a kubelet: a new key and the name of the node."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from bootbridge.errors import OperatorError
from bootbridge.join_api.kubelet_certificate import KubeletCsr
from bootbridge.node.kubelet_csr import new_kubelet_csr


def test_a_csr_has_the_node_name_and_group_and_a_valid_signature() -> None:
    made = new_kubelet_csr("node-1")
    request = x509.load_der_x509_csr(made.csr)
    assert [(each.oid, each.value) for each in request.subject] == [
        (NameOID.ORGANIZATION_NAME, "system:nodes"),
        (NameOID.COMMON_NAME, "system:node:node-1"),
    ]
    assert request.is_signature_valid
    key = load_pem_private_key(made.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert key.public_key() == request.public_key()


def test_the_join_service_accepts_a_csr() -> None:
    KubeletCsr(new_kubelet_csr("node-1").csr).require_subject("node-1", ())


def test_the_name_is_normalised() -> None:
    request = x509.load_der_x509_csr(new_kubelet_csr("NODE_1").csr)
    assert request.subject.rfc4514_string() == "CN=system:node:node-1,O=system:nodes"


def test_each_csr_has_a_new_key_that_is_not_in_repr() -> None:
    one, other = new_kubelet_csr("node-1"), new_kubelet_csr("node-1")
    assert one.key != other.key
    assert "PRIVATE" not in repr(one)


def test_a_name_that_is_too_long_for_a_certificate_is_refused() -> None:
    new_kubelet_csr("n" * 52)
    with pytest.raises(OperatorError, match="at most 52 characters"):
        new_kubelet_csr("n" * 53)
