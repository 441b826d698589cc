"""The Python interpreter of this machine as entries of an image, reduced to what the programs need.

The image has no shell and no package manager: only the interpreter, a reduced standard library, a few
packages and the C libraries that they load.
"""

from __future__ import annotations

import importlib.metadata
import os
import site
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from bootbridge import installation
from bootbridge.errors import OperatorError
from bootbridge.image import shared_libraries
from bootbridge.image.layer import Entry, copied, directory, file

HOME = "/usr/lib/bootbridge"
LIBRARIES = f"{HOME}/lib"
LIBRARY = f"{LIBRARIES}/python{sys.version_info.major}.{sys.version_info.minor}"
# Debian's interpreter searches dist-packages instead of site-packages.
_DEBIAN = any(path.endswith("dist-packages") for path in site.getsitepackages())
SITE = f"{LIBRARY}/{'dist' if _DEBIAN else 'site'}-packages"
INTERPRETER = f"{HOME}/bin/python3"
# All that proxy-server and proxy-agent import (PyYAML for --kubeconfig); see pyproject.toml.
PACKAGES = ("hpack", "h11", "PyYAML")
# Development tools, tests, and modules for displays and databases.
_LEFT_OUT = frozenset(
    (
        "test",
        "tests",
        "unittest",
        "idlelib",
        "lib2to3",
        "ensurepip",
        "distutils",
        "venv",
        "pydoc_data",
        "tkinter",
        "turtledemo",
        "curses",
        "sqlite3",
        "dbm",
        "wsgiref",
        "xmlrpc",
        "msilib",
        "site-packages",
        "dist-packages",
        "__pycache__",
    )
)
_MODULES_LEFT_OUT = (
    "_test",
    "_ctypes_test",
    "xxlimited",
    "_tkinter",
    "_curses",
    "readline",
    "_sqlite3",
    "_dbm",
    "_gdbm",
    "nis",
    "_crypt",
)
_CODE = (".py", ".so")
OWN_PACKAGE = Path(__file__).parents[1]
# Files of our own packages that programs read: those of the status page.
OWN_SUFFIXES = (*_CODE, ".css", ".js", ".svg")
_USUAL_ROOTS = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
# Files that the C library expects.
_SYSTEM = (
    directory("/tmp", 0o1777),
    directory("/proc"),
    directory("/sys"),
    directory("/dev"),
    file("/etc/passwd", b"root:x:0:0:root:/:/sbin/nologin\nbootbridge:x:65532:65532::/:/sbin/nologin\n"),
    file("/etc/group", b"root:x:0:\nbootbridge:x:65532:\n"),
    file("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n"),
)


def runtime_entries() -> list[Entry]:
    """Returns interpreter, standard library, packages and shared libraries: the layer that rarely changes."""
    interpreter = Path(sys.executable).resolve()
    sources = dict(_standard_library())
    for name in PACKAGES:
        sources.update(_package(name))
    modules = [path for path in sources.values() if path.suffix == ".so"]
    libraries = shared_libraries.needed_by([interpreter, *modules])
    return [
        *_SYSTEM,
        *_trusted_roots(),
        copied(INTERPRETER, interpreter, 0o755),
        *_copied_and_compiled(sources),
        *(copied(f"{LIBRARIES}/{name}", path, 0o755) for name, path in libraries.files.items()),
        copied(libraries.loader, Path(libraries.loader).resolve(), 0o755),
    ]


def release(packages: Collection[str] = ()) -> str:
    """Returns the releases of interpreter and packages, to detect that an image must be built again."""
    versions = [f"{name} {_distribution(name).version}" for name in (*PACKAGES, *packages)]
    return ", ".join((str(Path(sys.executable).resolve()), sys.version, ssl.OPENSSL_VERSION, *versions))


def package_entries(names: Collection[str]) -> list[Entry]:
    """Returns more packages and their C libraries, for a layer on top of the shared one."""
    sources = {path: source for name in names for path, source in _package(name)}
    modules = [path for path in sources.values() if path.suffix == ".so"]
    libraries = shared_libraries.needed_by(modules)
    return [
        *_copied_and_compiled(sources),
        *(copied(f"{LIBRARIES}/{name}", path, 0o755) for name, path in libraries.files.items()),
    ]


def own_entries(
    modules: Collection[str], commands: Mapping[str, str], root: Path = OWN_PACKAGE
) -> list[Entry]:
    """Returns entries for these modules of bootbridge (packages or files), and for `commands` in /usr/bin.

    `root` is the package to copy them from.
    """
    sources = {
        f"{SITE}/bootbridge/{path}": root / path
        for path in (found.relative_to(root).as_posix() for found in _files(root, OWN_SUFFIXES))
        if path in modules or path.partition("/")[0] in modules or _source_of(path) in modules
    }
    # In a compiled installation all compiled modules share one library beside the package.
    sources |= {f"{SITE}/{path.name}": path for path in root.parent.glob("bootbridge__mypyc.*.so")}
    return [
        *_copied_and_compiled(sources),
        *_record_of_plain(root),
        *(file(f"/usr/bin/{name}", _command(module), 0o755) for name, module in commands.items()),
    ]


def _record_of_plain(root: Path) -> list[Entry]:
    """Returns the file from which the programs know why they are not compiled: installation.plain_reason."""
    if any(root.glob("bounds.*.so")):
        return []
    reason = f"the image was built with plain modules: {installation.plain_reason() or 'as requested'}\n"
    return [file(f"{SITE}/bootbridge/{installation.PLAIN_RECORD}", reason.encode())]


def _source_of(path: str) -> str:
    """Returns the source of a compiled module: `metrics.cpython-311-x86_64-linux-gnu.so` → `metrics.py`."""
    return f"{path.partition('.')[0]}.py"


def _command(module: str) -> bytes:
    # -I: neither the environment nor the working directory decides what is imported.
    lines = (f"#!{INTERPRETER} -I", "import sys", f"from {module} import main", "sys.exit(main())")
    return ("\n".join(lines) + "\n").encode()


def _copied_and_compiled(sources: dict[str, Path]) -> list[Entry]:
    with tempfile.TemporaryDirectory(prefix="bootbridge-image-") as scratch:
        compiled = list(_compiled(sources, Path(scratch)))
    return [*(copied(path, source, _mode(source)) for path, source in sources.items()), *compiled]


def _trusted_roots() -> list[Entry]:
    """Returns this machine's CA bundle, for an agent without --ca-cert."""
    default = ssl.get_default_verify_paths()
    roots = Path(default.openssl_cafile)
    found = next((path for path in (roots, *_USUAL_ROOTS) if path.is_file()), None)
    return [copied(default.openssl_cafile, found)] if found else []


def _mode(path: Path) -> int:
    return 0o755 if path.suffix == ".so" else 0o644


def _standard_library() -> Iterator[tuple[str, Path]]:
    root = Path(os.__file__).parent
    for path in _files(root):
        if not (path.suffix == ".so" and path.name.startswith(_MODULES_LEFT_OUT)):
            yield f"{LIBRARY}/{path.relative_to(root).as_posix()}", path


def _files(root: Path, suffixes: tuple[str, ...] = _CODE) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name not in _LEFT_OUT and not name.startswith("config-")
        )
        for name in sorted(names):
            if name.endswith(suffixes):
                yield Path(folder, name)


def _package(name: str) -> Iterator[tuple[str, Path]]:
    """Yields the files of a package without tests, C sources and caches."""
    for entry in _distribution(name).files or []:
        path = Path(str(entry.locate()))
        kept = entry.suffix in _CODE or entry.name in ("METADATA", "LICENSE", "LICENSE.txt")
        if kept and not _LEFT_OUT & set(entry.parts) and ".." not in entry.parts and path.is_file():
            yield f"{SITE}/{entry.as_posix()}", path


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise OperatorError(
            "package not installed", subject=name, hint="run `pip install bootbridge`"
        ) from None


def _compiled(sources: dict[str, Path], scratch: Path) -> Iterator[Entry]:
    """Yields byte code beside the sources: Python cannot write it to a read-only root later.

    Compiles in a process with a fixed hash seed, because constants that are sets are written in hash order.
    """
    jobs = [(path, source) for path, source in sources.items() if path.endswith(".py")]
    listing = scratch / "jobs"
    listing.write_text(
        "".join(f"{source}\0{path}\0{scratch / str(n)}\n" for n, (path, source) in enumerate(jobs))
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", _COMPILER, str(listing)],
        capture_output=True,
        text=True,
        env={"PYTHONHASHSEED": "0"},
    )
    if done.returncode:
        raise OperatorError(f"byte-compiling failed: {done.stderr.strip()[-300:]}")
    tag = sys.implementation.cache_tag
    for number, (path, _) in enumerate(jobs):
        folder, _, name = path.rpartition("/")
        compiled = scratch / str(number)
        if compiled.exists():
            yield file(f"{folder}/__pycache__/{name[:-3]}.{tag}.pyc", compiled.read_bytes())


_COMPILER = """
import py_compile, sys
for line in open(sys.argv[1]):
    source, path, target = line.rstrip("\\n").split("\\0")
    try:
        py_compile.compile(source, target, dfile=path, doraise=True,
                           invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    except py_compile.PyCompileError:
        pass  # the standard library contains files with invalid syntax, for tests
"""
