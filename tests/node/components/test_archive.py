"""Archives are unpacked into their directory and cannot write outside it."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.node.components import archive as component_archive
from bootbridge.node.components.archive import BadArchive, unpack


def member(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, mode
    return made


def file(name: str, **kind: int) -> tarfile.TarInfo:
    return member(name, **kind)  # type: ignore[arg-type]


def link(name: str, target: str) -> tarfile.TarInfo:
    return member(name, tarfile.SYMTYPE, link=target)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "here" / "place"


def unpacked(directory: Path, members: Iterable[tarfile.TarInfo], data: bytes = b"data") -> None:
    archive = directory.parent.parent / "archive"
    with tarfile.open(archive, "w:gz") as out:
        for each in members:
            each.size = len(data) if each.isreg() else 0
            out.addfile(each, io.BytesIO(data) if each.isreg() else None)
    unpack(archive, directory)


def test_directories_files_and_links_are_unpacked(directory: Path) -> None:
    unpacked(
        directory,
        [
            member(".", tarfile.DIRTYPE),
            member("./bin/", tarfile.DIRTYPE),
            file("./bin/tool", mode=0o755),
            file("share/doc"),
            link("bin/alias", "tool"),
            link("bin/doc", "../share/doc"),
        ],
    )
    assert (directory / "bin/tool").stat().st_mode & 0o7777 == 0o755
    assert (directory / "share/doc").stat().st_mode & 0o7777 == 0o644
    assert (directory / "bin/alias").readlink() == Path("tool")
    assert (directory / "bin/doc").read_bytes() == b"data"


def test_only_the_execute_bit_of_the_archive_is_kept(directory: Path) -> None:
    unpacked(directory, [file("root-shell", mode=0o6777)])
    assert (directory / "root-shell").stat().st_mode & 0o7777 == 0o755


def test_existing_files_are_kept_unless_the_archive_replaces_them(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "mine").write_bytes(b"mine")
    (directory / "tool").write_bytes(b"old")
    unpacked(directory, [file("tool")])
    assert (directory / "mine").read_bytes() == b"mine"
    assert (directory / "tool").read_bytes() == b"data"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (file("../out"), "outside the archive"),
        (file("a/../../out"), "outside the archive"),
        (file("a/../b"), "outside the archive"),
        (file("/etc/out"), "outside the archive"),
        (member("../out/", tarfile.DIRTYPE), "outside the archive"),
        (link("a", "../out"), "outside the archive"),
        (link("a/b", "../../out"), "outside the archive"),
        (link("a", "/etc/out"), "outside the archive"),
        (link("a", "b/../../out"), "outside the archive"),
        (link("../a", "b"), "outside the archive"),
        (link("a", "b/.."), "outside the archive"),
        (link("a/b", "..//./../out"), "outside the archive"),
        (link("a", "ü\0c"), "invalid tar.gz"),
        (link(".", "a"), "without a name"),
        (link("a", ""), "without a target"),
        (file(" "), "without a name"),
        (file("."), "without a name"),
        (member("a", tarfile.LNKTYPE, link="good"), "unsupported file type"),
        (member("a", tarfile.FIFOTYPE), "unsupported file type"),
        (member("a", tarfile.CHRTYPE), "unsupported file type"),
        (member("a", tarfile.BLKTYPE), "unsupported file type"),
    ],
)
def test_an_archive_with_one_invalid_member_installs_nothing(
    directory: Path, bad: tarfile.TarInfo, message: str
) -> None:
    with pytest.raises(BadArchive, match=message):
        unpacked(directory, [file("good"), bad])
    assert sorted(path.name for path in directory.parent.parent.rglob("*")) == ["archive", "here", "place"]


def test_a_link_to_a_parent_in_the_archive_is_kept(directory: Path) -> None:
    unpacked(directory, [file("lib/tool"), link("bin/sub/tool", "../../lib/tool"), link("all", ".")])
    assert (directory / "bin/sub/tool").resolve() == directory / "lib/tool"
    assert (directory / "all").resolve() == directory


STEPS = st.sampled_from(["a", "b", "c", ".", "..", ""])
PATHS = st.lists(STEPS, min_size=1, max_size=5).map("/".join)
KINDS = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]
)
# Safe names, so that archives with many links are accepted too.
NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
MEMBERS = st.builds(lambda name, kind, target: member(name, kind, link=target), NAMES | PATHS, KINDS, PATHS)
ARCHIVES = st.lists(MEMBERS, max_size=8)


def contents(root: Path) -> dict[str, bytes | str]:
    """Returns everything below a directory, without following links."""
    found: dict[str, bytes | str] = {}
    for folder, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = Path(folder, name)
            if path.is_symlink():
                found[str(path)] = str(path.readlink())
            else:
                found[str(path)] = b"" if path.is_dir() else path.read_bytes()
    return found


def is_loop(path: str) -> bool:
    """Whether a link leads to itself, so that the kernel follows it nowhere; `realpath` invents a result."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


@settings(max_examples=400, deadline=None)
@given(archives=st.lists(ARCHIVES, min_size=1, max_size=3))
def test_no_set_of_links_leads_out_of_the_archive(archives: list[list[tarfile.TarInfo]]) -> None:
    """Also with several archives in one directory; outside, nothing is written."""
    with TemporaryDirectory() as name:
        outside = Path(name).resolve()
        directory = outside / "x" / "here" / "place"
        (outside / "x" / "here" / "a").mkdir(parents=True)
        (outside / "a").write_bytes(b"precious")
        before = contents(outside)
        for number, members in enumerate(archives):
            try:
                unpacked(directory, members, b"%d" % number)
            except BadArchive:
                pass
            (outside / "x" / "archive").unlink()
            after = contents(outside)
            assert {path: data for path, data in after.items() if directory not in Path(path).parents} == {
                **before,
                str(directory): b"",
            }
            for path in after:
                if Path(path).is_symlink() and not is_loop(path):
                    assert Path(os.path.realpath(path)).is_relative_to(directory)


def test_no_file_is_written_through_a_link_in_the_archive(directory: Path) -> None:
    with pytest.raises(BadArchive, match="path below a symbolic link"):
        unpacked(directory, [member("real", tarfile.DIRTYPE), link("way", "real"), file("way/file")])


def test_no_file_is_written_through_an_existing_link(directory: Path, tmp_path: Path) -> None:
    directory.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (directory / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadArchive, match="is a symbolic link"):
        unpacked(directory, [file("sub/file")])
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_existing_link_at_the_path_of_a_file_is_replaced(directory: Path, tmp_path: Path) -> None:
    directory.mkdir(parents=True)
    (tmp_path / "precious").write_bytes(b"precious")
    (directory / "tool").symlink_to(tmp_path / "precious")
    unpacked(directory, [file("tool")])
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert (directory / "tool").read_bytes() == b"data"


def test_an_archive_above_the_size_limit_is_rejected(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(component_archive, "UNPACKED_BYTES_MAX", 1000)
    with pytest.raises(BadArchive, match="archive exceeds"):
        unpacked(directory, [file("a"), file("b")], b"x" * 501)
