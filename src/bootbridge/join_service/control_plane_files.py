"""kubeadm's PKI directory: the CA for kubelet certificates, and the files for further control planes."""

from __future__ import annotations

from pathlib import Path

from bootbridge.common.files import read_file
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_api.kubelet_certificate import KubeletCa
from bootbridge.join_api.messages import ControlPlaneFile


class ControlPlaneFiles:
    """Reloads the CA when its files change, as it is renewed in place."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._certificate, self._key = directory / "ca.crt", directory / "ca.key"
        self._ca: KubeletCa | None = None
        self._version: tuple[object, ...] = ()

    def ca(self) -> KubeletCa:
        # Cached: checking an RSA key takes longer than the rest of a ticket.
        version = (_file_version(self._certificate), _file_version(self._key))
        if self._ca is None or version != self._version:
            self._ca = KubeletCa(self._read("ca.crt"), self._read("ca.key"))
            self._version = version
        return self._ca

    def read_all(self) -> tuple[ControlPlaneFile, ...]:
        """Raises OperatorError with the name of a missing file."""
        return tuple(ControlPlaneFile(name, self._read(name)) for name in CONTROL_PLANE_FILES)

    def _read(self, name: str) -> bytes:
        return read_file(self._directory / name, "--pki")


def _file_version(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)
