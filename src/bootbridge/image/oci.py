"""Builds OCI images: configuration, manifest, and an archive that container runtimes import."""

from __future__ import annotations

import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bootbridge.image.layer import Blob, ImageLayer

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x"}
# Builds are reproducible: no image contains its build time.
NO_TIME = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class OciImage:
    """Layers, and the configuration of the container."""

    layers: tuple[ImageLayer, ...]
    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Blob:
        settings: dict[str, object] = {
            "Env": [f"{name}={value}" for name, value in self.environment.items()],
            "Entrypoint": list(self.entrypoint),
            "Labels": dict(self.labels),
            "User": self.user,
            "WorkingDir": "/",
        }
        return _json_blob(
            {
                "created": NO_TIME,
                "architecture": architecture(),
                "os": "linux",
                "config": {name: value for name, value in settings.items() if value},
                "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in self.layers]},
                "history": [
                    {"created": NO_TIME, "created_by": "bootbridge image build"} for _ in self.layers
                ],
            },
            CONFIG_TYPE,
        )

    @property
    def manifest(self) -> Blob:
        return _json_blob(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": self.config.descriptor,
                "layers": [layer.blob.descriptor for layer in self.layers],
            },
            MANIFEST_TYPE,
        )

    @property
    def digest(self) -> str:
        """The digest of the manifest, by which a registry identifies the image."""
        return self.manifest.digest

    @property
    def size(self) -> int:
        """Compressed bytes, as stored in a registry."""
        return sum(len(layer.blob.data) for layer in self.layers)


def architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def archive(images: Mapping[str, OciImage]) -> bytes:
    """Returns an OCI layout as a tar, for `ctr images import`, `podman load` and `skopeo`."""
    blobs: dict[str, Blob] = {}
    descriptors = []
    for reference, image in images.items():
        manifest = image.manifest
        for blob in (manifest, image.config, *(layer.blob for layer in image.layers)):
            blobs[blob.digest] = blob
        descriptors.append(manifest.descriptor | {"annotations": _names(reference)})
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": descriptors}
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": _compact(index),
        **{f"blobs/{digest.replace(':', '/')}": blob.data for digest, blob in sorted(blobs.items())},
    }
    return _tar(files)


def _names(reference: str) -> dict[str, str]:
    # containerd reads the first, podman and skopeo the second.
    return {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}


def _tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in _directories(list(files)):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def _directories(names: Sequence[str]) -> list[str]:
    return sorted({str(parent) for name in names for parent in Path(name).parents} - {"."})


def _json_blob(document: object, media_type: str) -> Blob:
    return Blob(_compact(document), media_type)


def _compact(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
