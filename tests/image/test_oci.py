"""The archive is an OCI image layout that runtimes import."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import Any

from bootbridge.image.layer import file, layer
from bootbridge.image.oci import OciImage, archive

IMAGE = OciImage(
    layers=(layer([file("/a", b"a")]), layer([file("/b", b"b")])),
    entrypoint=("/a",),
    environment={"PATH": "/usr/bin"},
    user="65532:65532",
    labels={"org.opencontainers.image.title": "x"},
)


def contents(images: dict[str, OciImage]) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive(images))) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]


def blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    data = files["blobs/" + descriptor["digest"].replace(":", "/")]
    assert len(data) == descriptor["size"]
    return data


def test_every_blob_is_named_by_its_digest() -> None:
    blobs = {name: data for name, data in contents({"x:1": IMAGE}).items() if name.startswith("blobs/")}
    assert len(blobs) == 4
    assert all(name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}" for name, data in blobs.items())


def test_the_index_refers_to_manifest_config_and_layers() -> None:
    files = contents({"localhost/x:1": IMAGE})
    (descriptor,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blob(files, descriptor))
    config = json.loads(blob(files, manifest["config"]))
    assert [blob(files, each) for each in manifest["layers"]] == [each.blob.data for each in IMAGE.layers]
    assert config["rootfs"]["diff_ids"] == [each.diff_id for each in IMAGE.layers]
    assert config["config"]["Entrypoint"] == ["/a"]
    assert config["config"]["Env"] == ["PATH=/usr/bin"]
    assert config["config"]["User"] == "65532:65532"


def test_an_image_is_named_for_containerd_and_for_podman() -> None:
    (descriptor,) = json.loads(contents({"localhost/x:1": IMAGE})["index.json"])["manifests"]
    assert set(descriptor["annotations"].values()) == {"localhost/x:1"}
    assert descriptor["digest"] == IMAGE.digest


def test_images_of_one_archive_share_their_blobs() -> None:
    assert len(contents({"a:1": IMAGE, "b:1": IMAGE})) == len(contents({"a:1": IMAGE}))


def test_equal_images_give_equal_archives() -> None:
    assert archive({"x:1": IMAGE}) == archive({"x:1": IMAGE})
