"""This machine's Python, cut down to what our server and agent need, as entries of an image.

The image holds no shell and no package manager: the interpreter, its standard library
without the parts for developers, two packages and the C libraries they load.
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

from bootbridge.errors import OperatorError
from bootbridge.image import shared_libraries
from bootbridge.image.layer import Entry, copied, directory, file

HOME = "/usr/lib/bootbridge"
LIBRARIES = f"{HOME}/lib"
LIBRARY = f"{LIBRARIES}/python{sys.version_info.major}.{sys.version_info.minor}"
# Debian's interpreter looks for packages in a folder of its own name.
_DEBIAN = any(path.endswith("dist-packages") for path in site.getsitepackages())
SITE = f"{LIBRARY}/{'dist' if _DEBIAN else 'site'}-packages"
INTERPRETER = f"{HOME}/bin/python3"
# What the server and the agent import, and nothing else (PyYAML for a --kubeconfig): see pyproject.toml.
PACKAGES = ("hpack", "h11", "PyYAML")
# Tools of developers, tests, and what needs a display or a database.
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
_USUAL_ROOTS = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
# What a C library expects of a root directory.
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
    """Interpreter, standard library, packages and shared libraries: the layer that seldom changes."""
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
    """Which interpreter and packages would go into an image: a new release of any makes another one."""
    versions = [f"{name} {_distribution(name).version}" for name in (*PACKAGES, *packages)]
    return ", ".join((str(Path(sys.executable).resolve()), sys.version, ssl.OPENSSL_VERSION, *versions))


def package_entries(names: Collection[str]) -> list[Entry]:
    """More packages and the libraries they load, for a layer over the one that all images share."""
    sources = {path: source for name in names for path, source in _package(name)}
    modules = [path for path in sources.values() if path.suffix == ".so"]
    libraries = shared_libraries.needed_by(modules)
    return [
        *_copied_and_compiled(sources),
        *(copied(f"{LIBRARIES}/{name}", path, 0o755) for name, path in libraries.files.items()),
    ]


def own_entries(modules: Collection[str], commands: Mapping[str, str]) -> list[Entry]:
    """Returns entries for these modules of bootbridge (packages or files), and for `commands` in /usr/bin."""
    root = Path(__file__).parents[1]
    sources = {
        f"{SITE}/bootbridge/{path}": root / path
        for path in (found.relative_to(root).as_posix() for found in _files(root))
        if path in modules or path.partition("/")[0] in modules or _source_of(path) in modules
    }
    # In a compiled installation (make wheel) all compiled modules share one library beside the package.
    sources |= {f"{SITE}/{path.name}": path for path in root.parent.glob("bootbridge__mypyc.*.so")}
    return [
        *_copied_and_compiled(sources),
        *(file(f"/usr/bin/{name}", _command(module), 0o755) for name, module in commands.items()),
    ]


def _source_of(path: str) -> str:
    """What a compiled module was made of: `metrics.cpython-311-x86_64-linux-gnu.so` → `metrics.py`."""
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
    """The machine's own, for an agent without --ca-cert."""
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


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name not in _LEFT_OUT and not name.startswith("config-")
        )
        for name in sorted(names):
            if name.endswith((".py", ".so")):
                yield Path(folder, name)


def _package(name: str) -> Iterator[tuple[str, Path]]:
    """A package's own files, without its tests, sources in C and caches."""
    for entry in _distribution(name).files or []:
        path = Path(str(entry.locate()))
        kept = entry.suffix in (".py", ".so") or entry.name in ("METADATA", "LICENSE", "LICENSE.txt")
        if kept and not _LEFT_OUT & set(entry.parts) and ".." not in entry.parts and path.is_file():
            yield f"{SITE}/{entry.as_posix()}", path


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise OperatorError(f"the package {name} is not installed", hint="pip install bootbridge") from None


def _compiled(sources: dict[str, Path], scratch: Path) -> Iterator[Entry]:
    """Byte code beside the sources: the root file system is read-only, so it cannot be made later.

    A process of its own with a fixed hash seed, because sets in constants are written in hash order.
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
        pass  # the standard library ships files of bad syntax on purpose
"""
