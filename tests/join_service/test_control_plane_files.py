"""The eight files of a control plane, and the authority that is kept while they stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from bootbridge.errors import OperatorError
from bootbridge.join_api.messages import CONTROL_PLANE_FILES
from bootbridge.join_service.control_plane_files import ControlPlaneFiles
from bootbridge.trust.authority import Authority
from tests.join_service.environment import pki


def test_all_of_them_are_read(tmp_path: Path) -> None:
    files = ControlPlaneFiles(pki(tmp_path)).all()
    assert tuple(each.name for each in files) == CONTROL_PLANE_FILES
    assert all(each.data == (tmp_path / each.name).read_bytes() for each in files)


@pytest.mark.parametrize("name", CONTROL_PLANE_FILES)
def test_a_missing_one_is_named(tmp_path: Path, name: str) -> None:
    (pki(tmp_path) / name).unlink()
    with pytest.raises(OperatorError, match=f"cannot read .*{name}"):
        ControlPlaneFiles(tmp_path).all()


def test_the_authority_is_read_once_and_again_when_it_was_renewed(tmp_path: Path) -> None:
    files = ControlPlaneFiles(pki(tmp_path))
    first = files.authority()
    assert files.authority() is first
    renewed = Authority.create("renewed")
    renewed.write(tmp_path, "ca", with_key=True)
    (certificate,) = files.authority().certificates
    assert certificate == x509.load_pem_x509_certificate(renewed.cert_pem)


def test_keys_stay_out_of_repr(tmp_path: Path) -> None:
    assert "the content of" not in repr(ControlPlaneFiles(pki(tmp_path)).all())
