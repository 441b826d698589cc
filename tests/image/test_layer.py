"""Layers are the same bytes for the same entries."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import tarfile

from hypothesis import given
from hypothesis import strategies as st

from bootbridge.image.layer import Entry, copied, directory, file, layer, link

ENTRIES = [
    directory("/tmp", 0o1777),
    file("/usr/bin/program", b"code", 0o755),
    file("/etc/passwd", b"root:x:0:0::/:\n"),
    link("/lib/library.so", "library.so.1"),
]


def unpacked(entries: list[Entry]) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer(entries).blob.data)))


def test_files_keep_their_bytes_and_modes() -> None:
    with unpacked(ENTRIES) as tar:
        found = tar.getmember("usr/bin/program")
        content = tar.extractfile(found)
        assert content is not None
        assert content.read() == b"code"
        assert found.mode == 0o755


def test_links_and_directories_keep_their_types() -> None:
    with unpacked(ENTRIES) as tar:
        assert tar.getmember("lib/library.so").linkname == "library.so.1"
        assert tar.getmember("tmp").isdir()
        assert tar.getmember("tmp").mode == 0o1777


def test_parent_directories_precede_their_content() -> None:
    with unpacked(ENTRIES) as tar:
        names = tar.getnames()
    assert names.index("usr") < names.index("usr/bin") < names.index("usr/bin/program")
    assert names == sorted(names)


def test_every_entry_belongs_to_root_and_has_time_0() -> None:
    with unpacked(ENTRIES) as tar:
        assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in tar} == {(0, 0, "", "", 0)}


def test_a_copied_file_has_the_mode_of_its_entry(tmp_path) -> None:
    source = tmp_path / "private"
    source.write_bytes(b"x")
    source.chmod(0o600)
    with unpacked([copied("/x", source, 0o644)]) as tar:
        assert tar.getmember("x").mode == 0o644


def test_the_last_of_two_entries_with_one_path_is_used() -> None:
    with unpacked([file("/a", b"old"), file("/a", b"new")]) as tar:
        content = tar.extractfile("a")
        assert content is not None
        assert content.read() == b"new"


def test_the_diff_id_is_the_digest_of_the_uncompressed_layer() -> None:
    made = layer(ENTRIES)
    assert made.diff_id == "sha256:" + hashlib.sha256(gzip.decompress(made.blob.data)).hexdigest()


@given(st.integers(0, 2**32))
def test_the_order_of_entries_does_not_matter(seed: int) -> None:
    shuffled = list(ENTRIES)
    random.Random(seed).shuffle(shuffled)
    assert layer(shuffled) == layer(ENTRIES)
