"""Serving certificates: the node supplies the key, the inventory everything else."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from bootbridge.errors import OperatorError
from bootbridge.join_api.errors import JoinRefused
from bootbridge.join_api.kubelet_certificate import KubeletCa, KubeletCsr
from bootbridge.trust.authority import Authority, KeyKind
from tests.join_service.environment import csr

ADDRESSES = (ip_address("10.0.0.5"), ip_address("fd00::5"))
NOW = datetime.now(UTC).timestamp()
DAY = timedelta(days=1)


def authority(validity: timedelta = 10 * DAY, key: KeyKind = "ecdsa-p256") -> Authority:
    return Authority.create("kubernetes", key=key, validity=validity)


def kubelet_authority(made: Authority | None = None) -> KubeletCa:
    made = made or authority()
    return KubeletCa(made.cert_pem, made.key_pem)


def signed(request: bytes, by: KubeletCa | None = None, validity: timedelta = DAY) -> x509.Certificate:
    pem = (by or kubelet_authority()).sign(
        KubeletCsr(request), "node.a", ADDRESSES, now=NOW, validity=validity
    )
    return x509.load_pem_x509_certificate(pem)


class TestCertificate:
    def test_has_exactly_the_name_and_addresses_of_the_inventory(self) -> None:
        """Regardless of the names in the CSR."""
        certificate = signed(csr("node.a"))
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert list(names) == [x509.DNSName("node.a"), *(x509.IPAddress(each) for each in ADDRESSES)]
        assert certificate.subject.rfc4514_string() == "CN=system:node:node.a,O=system:nodes"

    def test_is_valid_for_servers_only(self) -> None:
        """As a client certificate it would authenticate the node without an approval."""
        extensions = signed(csr("node.a")).extensions
        usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca

    def test_is_valid_from_five_minutes_ago_for_the_requested_time(self) -> None:
        certificate = signed(csr("node.a"))
        now = datetime.fromtimestamp(int(NOW), UTC)
        assert certificate.not_valid_before_utc == now - timedelta(minutes=5)
        assert certificate.not_valid_after_utc == now + DAY

    def test_does_not_outlive_its_ca(self) -> None:
        made = authority(validity=DAY)
        ends = x509.load_pem_x509_certificate(made.cert_pem).not_valid_after_utc
        certificate = signed(csr("node.a"), kubelet_authority(made), validity=365 * DAY)
        assert certificate.not_valid_after_utc == ends

    def test_has_the_key_of_the_csr(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        assert signed(csr("node.a", key=key)).public_key() == key.public_key()

    @pytest.mark.filterwarnings("ignore:Attribute's length")
    def test_of_a_name_longer_than_x520_allows_is_signed(self) -> None:
        name = "n" * 63 + ".example"
        pem = kubelet_authority().sign(KubeletCsr(csr(name)), name, ADDRESSES, now=NOW, validity=DAY)
        (common,) = x509.load_pem_x509_certificate(pem).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        assert common.value == f"system:node:{name}"

    @pytest.mark.parametrize("kind", ["ecdsa-p256", "rsa-2048"])
    def test_is_signed_by_the_cluster_ca(self, kind: KeyKind) -> None:
        made = authority(key=kind)
        certificate = signed(csr("node.a"), kubelet_authority(made))
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(made.cert_pem))

    def test_an_expired_ca_is_an_error(self) -> None:
        with pytest.raises(OperatorError, match="expired"):
            signed(csr("node.a"), kubelet_authority(authority(validity=timedelta(days=-1))))


class TestCsr:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"organisations": ()}, "organisation is not system:nodes only"),
            ({"organisations": ("system:masters",)}, "organisation is not system:nodes only"),
            ({"organisations": ("system:nodes", "system:masters")}, "organisation is not system:nodes only"),
            ({"organisations": ("system:nodes", "system:nodes")}, "organisation is not system:nodes only"),
            ({"common_names": ()}, "expected system:node:node.a"),
            ({"common_names": ("system:node:other",)}, "common name"),
            ({"common_names": ("node.a",)}, "common name"),
            ({"common_names": ("system:node:node.a", "admin")}, "common name"),
            ({"more": [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "x")]}, "subject has more"),
            ({"sans": [x509.DNSName("kubernetes")]}, "subject alternative name kubernetes"),
            ({"sans": [x509.IPAddress(ip_address("10.0.0.6"))]}, r"subject alternative name 10\.0\.0\.6"),
            ({"sans": [x509.RFC822Name("a@b.c")]}, "subject alternative name a@b.c"),
        ],
    )
    def test_for_another_name_is_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(JoinRefused, match=message):
            signed(csr("node.a", **changes))

    def test_may_contain_its_own_name_and_addresses(self) -> None:
        signed(csr("node.a", sans=[x509.DNSName("node.a"), x509.IPAddress(ADDRESSES[1])]))

    @pytest.mark.parametrize(
        "key", [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)]
    )
    def test_with_another_kind_of_key_is_refused(self, key: Any) -> None:
        with pytest.raises(JoinRefused, match="P-256"):
            KubeletCsr(csr("node.a", key=key))

    def test_with_an_invalid_signature_is_refused(self) -> None:
        request = bytearray(csr("node.a"))
        request[-1] ^= 1
        with pytest.raises(JoinRefused):
            KubeletCsr(bytes(request))

    @pytest.mark.parametrize("garbage", [b"", b"garbage", b"\x30\x82" + b"\xff" * 100, b"x" * 10_000])
    def test_with_invalid_bytes_is_refused(self, garbage: bytes) -> None:
        with pytest.raises(JoinRefused, match="CSR"):
            KubeletCsr(garbage)

    def test_with_an_unsupported_type_of_name_is_refused(self) -> None:
        """An EDI party name, which the library cannot parse."""
        edi_party = x509.UnrecognizedExtension(
            ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3002a500")
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "system:node:node.a")])
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
        request = builder.add_extension(edi_party, critical=False).sign(
            ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()
        )
        with pytest.raises(JoinRefused, match="malformed CSR"):
            KubeletCsr(request.public_bytes(Encoding.DER))


class TestCa:
    @pytest.mark.parametrize("kind", ["ecdsa-p256", "rsa-2048"])
    @pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
    def test_every_key_format_of_kubeadm_is_accepted(self, kind: KeyKind, form: PrivateFormat) -> None:
        made = authority(key=kind)
        key = made._key.private_bytes(Encoding.PEM, form, NoEncryption())
        signed(csr("node.a"), KubeletCa(made.cert_pem, key))

    def test_an_unsupported_key_type_is_refused(self) -> None:
        key = ed25519.Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with pytest.raises(OperatorError, match=r"ca\.key: unsupported key type"):
            KubeletCa(authority().cert_pem, pem)

    @pytest.mark.parametrize(
        "key", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"]
    )
    def test_the_error_about_an_invalid_key_does_not_quote_it(self, key: bytes) -> None:
        with pytest.raises(OperatorError, match=r"ca\.key: invalid PEM private key") as refused:
            KubeletCa(authority().cert_pem, key)
        assert "AAAA" not in str(refused.value)

    @pytest.mark.parametrize("certificate", [b"", b"garbage"])
    def test_an_invalid_certificate_is_refused(self, certificate: bytes) -> None:
        with pytest.raises(OperatorError, match=r"ca\.crt: invalid PEM certificate"):
            KubeletCa(certificate, authority().key_pem)

    def test_a_key_that_does_not_match_the_certificate_is_refused(self) -> None:
        with pytest.raises(OperatorError, match=r"private key does not match the certificate"):
            KubeletCa(authority().cert_pem, authority().key_pem)

    def test_of_two_ca_certificates_the_one_of_the_key_signs(self) -> None:
        old, new = authority(), authority()
        both = KubeletCa(old.cert_pem + new.cert_pem, new.key_pem)
        signed(csr("node.a"), both).verify_directly_issued_by(x509.load_pem_x509_certificate(new.cert_pem))
        assert len(both.certificates) == 2


def test_ca_certificate_hashes_equal_those_of_openssl(tmp_path: Path) -> None:
    """`openssl x509 -pubkey | openssl pkey -pubin -outform der | openssl dgst -sha256`."""
    authorities = [Authority.create("one", key="rsa-2048"), Authority.create("two")]
    expected = []
    for each in authorities:
        path = each.write(tmp_path, "ca")
        public = subprocess.run(
            ["openssl", "x509", "-pubkey", "-noout", "-in", path], capture_output=True, check=True
        )
        der = subprocess.run(
            ["openssl", "pkey", "-pubin", "-outform", "der"],
            input=public.stdout,
            capture_output=True,
            check=True,
        )
        digest = subprocess.run(
            ["openssl", "dgst", "-sha256", "-r"], input=der.stdout, capture_output=True, check=True
        )
        expected.append("sha256:" + digest.stdout.decode().split()[0])
    both = KubeletCa(b"".join(each.cert_pem for each in authorities), authorities[0].key_pem)
    assert both.pins == tuple(expected)
