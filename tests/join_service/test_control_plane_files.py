"""The eight files of a control plane, and the cached CA."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from bootbridge.errors import OperatorError
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_service.control_plane_files import ControlPlaneFiles
from bootbridge.trust.authority import Authority
from tests.join_service.environment import pki


def test_all_files_are_read(tmp_path: Path) -> None:
    files = ControlPlaneFiles(pki(tmp_path)).read_all()
    assert tuple(each.name for each in files) == CONTROL_PLANE_FILES
    assert all(each.data == (tmp_path / each.name).read_bytes() for each in files)


@pytest.mark.parametrize("name", CONTROL_PLANE_FILES)
def test_the_error_names_a_missing_file(tmp_path: Path, name: str) -> None:
    (pki(tmp_path) / name).unlink()
    with pytest.raises(OperatorError, match=f"cannot read .*{name}"):
        ControlPlaneFiles(tmp_path).read_all()


def test_the_ca_is_cached_and_reloaded_after_a_renewal(tmp_path: Path) -> None:
    files = ControlPlaneFiles(pki(tmp_path))
    first = files.ca()
    assert files.ca() is first
    renewed = Authority.create("renewed")
    renewed.write(tmp_path, "ca", with_key=True)
    (certificate,) = files.ca().certificates
    assert certificate == x509.load_pem_x509_certificate(renewed.cert_pem)


def test_keys_are_not_in_repr(tmp_path: Path) -> None:
    assert "the content of" not in repr(ControlPlaneFiles(pki(tmp_path)).read_all())
