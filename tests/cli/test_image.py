"""``bootbridge image build``: the archive of an image, its result, and its bill of materials."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bootbridge import __version__
from bootbridge.cli import image, main
from bootbridge.image import compiled_package
from bootbridge.image.compiled_package import ModuleSource
from bootbridge.image.layer import file, layer
from bootbridge.image.oci import OciImage
from bootbridge.image.python_runtime import OWN_PACKAGE


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Replaces the recipes by one of a single file; the result lists the packages that modules came from."""
    used: list[Path] = []

    def recipe(package: Path) -> OciImage:
        used.append(package)
        return OciImage(layers=(layer([file("/a", b"a")]),))

    recipes: dict[str, tuple[str, Callable[[Path], OciImage]]] = {
        name: (stem, recipe) for name, (stem, _) in image._RECIPES.items()
    }
    monkeypatch.setattr(image, "_RECIPES", recipes)
    monkeypatch.chdir(tmp_path)
    return used


def compiling(monkeypatch: pytest.MonkeyPatch, source: ModuleSource) -> None:
    @contextmanager
    def compiled() -> Iterator[ModuleSource]:
        yield source

    monkeypatch.setattr(compiled_package, "compiled", compiled)


@pytest.mark.parametrize(
    ("words", "archive", "name"),
    [
        ([], "bootbridge.tar", f"localhost/bootbridge:{__version__}"),
        (["tunnel"], "bootbridge.tar", f"localhost/bootbridge:{__version__}"),
        (["node"], "bootbridge-node.tar", f"localhost/bootbridge-node:{__version__}"),
        (["node", "--name=x:1", "-o", "y.tar"], "y.tar", "x:1"),
    ],
    ids=["default", "tunnel", "node", "given"],
)
def test_each_image_has_its_own_archive_and_name(
    small: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    archive: str,
    name: str,
) -> None:
    compiling(monkeypatch, ModuleSource(Path("/compiled"), ""))
    assert main.main(["image", "build", *words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["file"], result["name"], result["compiled"]) == (archive, name, True)
    with tarfile.open(archive) as tar:
        index = json.loads(tar.extractfile("index.json").read())  # type: ignore[union-attr]
    assert index["manifests"][0]["digest"] == result["digest"]
    assert small == [Path("/compiled")]


def test_an_image_that_is_not_compiled_is_built_with_a_warning(
    small: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiling(monkeypatch, ModuleSource(OWN_PACKAGE, "no C compiler (install gcc)"))
    assert main.main(["image", "build", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["compiled"] is False
    assert "warning: the modules in the image are not compiled: no C compiler (install gcc)" in shown.err


def test_plain_modules_on_request_are_no_warning(
    small: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in a compiled installation: they are copied without the libraries."""
    assert main.main(["image", "build", "--plain"]) == 0
    shown = capsys.readouterr()
    assert "warning" not in shown.err
    assert f"localhost/bootbridge:{__version__}, plain, " in shown.out
    assert small != [OWN_PACKAGE]


def test_the_plain_package_has_no_compiled_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "bootbridge"
    package.mkdir()
    (package / "bounds.py").touch()
    (package / "bounds.cpython-311-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(compiled_package, "OWN_PACKAGE", package)
    with compiled_package.plain() as source:
        assert [path.name for path in source.directory.iterdir()] == ["bounds.py"]
        assert source.plain_reason


@pytest.mark.parametrize("flag", ["--output", "--sbom"])
def test_a_missing_directory_is_reported_before_the_work(
    small: list[Path], capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert main.main(["image", "build", flag, "missing/x"]) == 1
    assert "missing/x: directory not found (create it, or correct the path)" in capsys.readouterr().err
    assert small == []


@pytest.mark.parametrize("name", ["Boot Bridge:1", "registry.example/bootbridge", ""])
def test_an_invalid_name_is_reported_before_the_work(
    small: list[Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main.main(["image", "build", "--name", name]) == 1
    assert f"--name: invalid image reference {name!r}: " in capsys.readouterr().err
    assert small == []


def test_an_unknown_image_is_refused(small: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["image", "build", "nodes"]) == 1
    assert "invalid value 'nodes'" in capsys.readouterr().err


def test_a_source_tree_that_cannot_be_compiled_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's output is long; the line of our build backend is enough."""
    monkeypatch.setattr(compiled_package.installation, "COMPILED", False)
    monkeypatch.setenv("CC", "/none/gcc")
    with compiled_package.compiled() as source:
        assert source.directory == OWN_PACKAGE
        assert source.plain_reason.startswith("no C compiler: /none/gcc not found")
