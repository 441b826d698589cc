"""The cluster's keys as kubeadm keeps them: given to new control planes, and used to certify kubelets."""

from __future__ import annotations

from pathlib import Path

from bootbridge.common.files import read_file
from bootbridge.join_api.kubelet_certificate import KubeletCa
from bootbridge.join_api.messages import CONTROL_PLANE_FILES, ControlPlaneFile


class ControlPlaneFiles:
    """Read anew when they change: authorities are renewed in place."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._certificate, self._key = directory / "ca.crt", directory / "ca.key"
        self._authority: KubeletCa | None = None
        self._stamp: tuple[object, ...] = ()

    def authority(self) -> KubeletCa:
        # Kept while the files stay as they are: to check an RSA key takes longer than all else in a ticket.
        stamp = (_stamp_of(self._certificate), _stamp_of(self._key))
        if self._authority is None or stamp != self._stamp:
            self._authority = KubeletCa(self._read("ca.crt"), self._read("ca.key"))
            self._stamp = stamp
        return self._authority

    def all(self) -> tuple[ControlPlaneFile, ...]:
        """Every one of them, or an error that names the one that is missing."""
        return tuple(ControlPlaneFile(name, self._read(name)) for name in CONTROL_PLANE_FILES)

    def _read(self, name: str) -> bytes:
        return read_file(self._directory / name, "--pki")


def _stamp_of(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)
