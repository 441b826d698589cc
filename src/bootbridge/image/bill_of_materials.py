"""Lists what an image contains as a CycloneDX document: interpreter, packages, C libraries, CA certificates.

The components are found in the image itself, by the files that were copied into it. Where dpkg knows the file
of a library, the component is the Debian package, which scanners can look up.
"""

from __future__ import annotations

import email.parser
import hashlib
import platform
import shutil
import subprocess
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from bootbridge import __version__
from bootbridge.image import python_runtime
from bootbridge.image.oci import OciImage, architecture

SPECIFICATION = "1.6"
Component = dict[str, object]
_NAMESPACE = uuid.UUID("6f0d2d0e-51f1-4a44-9c53-5a4f0d4c3f0b")


def image_document(image: OciImage, reference: str) -> dict[str, object]:
    """Returns the document of one image; the same image gives the same document."""
    sources = {path: source for layer in image.layers for path, source in layer.sources.items()}
    packages = list(_python_packages(sources))
    components = [
        _interpreter(sources[python_runtime.INTERPRETER]),
        *packages,
        *_bundled_libraries({str(each["name"]) for each in packages}),
        *_shared_files(sources),
    ]
    main: Component = {
        "type": "container",
        "bom-ref": "image",
        "name": reference,
        "version": __version__,
        "purl": f"pkg:oci/bootbridge@{quote(image.digest, safe='')}?arch={architecture()}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "hashes": [{"alg": "SHA-256", "content": image.digest.removeprefix("sha256:")}],
    }
    return document(main, components)


def document(main: Component, components: Iterable[Component], timestamp: str = "") -> dict[str, object]:
    """Returns a CycloneDX document about `main`, which contains or depends on `components`."""
    listed = sorted(components, key=lambda each: str(each["bom-ref"]))
    identity = repr((main, listed))
    metadata: dict[str, object] = {
        "component": main,
        "tools": {"components": [{"type": "application", "name": "bootbridge", "version": __version__}]},
    }
    if timestamp:
        metadata = {"timestamp": timestamp, **metadata}
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPECIFICATION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        # Derived from the content instead of random, so that equal releases have equal bytes.
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, identity)}",
        "version": 1,
        "metadata": metadata,
        "components": listed,
        "dependencies": [
            {"ref": main["bom-ref"], "dependsOn": [each["bom-ref"] for each in listed]},
            *({"ref": each["bom-ref"], "dependsOn": []} for each in listed),
        ],
    }


def python_package(name: str, version: str, licence: str = "") -> Component:
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    component: Component = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    # A name in free text: packages write their licences in several ways, and few are SPDX expressions.
    return component | ({"licenses": [{"license": {"name": licence}}]} if licence else {})


def _interpreter(source: Path) -> Component:
    version = platform.python_version()
    component: Component = {
        "type": "application",
        "name": "CPython",
        "version": version,
        "cpe": f"cpe:2.3:a:python:python:{version}:*:*:*:*:*:*:*",
        "hashes": _hashes(source),
    }
    package = _debian_package(source)
    purl = package.purl if package else f"pkg:generic/cpython@{version}"
    return component | {"bom-ref": purl, "purl": purl}


def _python_packages(sources: dict[str, Path]) -> Iterable[Component]:
    for path, source in sources.items():
        if path.endswith(".dist-info/METADATA"):
            fields = email.parser.HeaderParser().parsestr(source.read_text())
            licence = fields["License-Expression"] or fields["License"] or ""
            yield python_package(
                fields["Name"], fields["Version"], licence.splitlines()[0] if licence else ""
            )


def _bundled_libraries(packages: set[str]) -> Iterable[Component]:
    """Yields the C libraries that packages from PyPI contain: no scanner finds them by a file."""
    if "cryptography" in packages:
        from cryptography.hazmat.backends.openssl import backend

        yield _bundled("openssl", "openssl", backend.openssl_version_text().split()[1], "cryptography")
    if "PyYAML" in packages:
        import yaml

        if yaml.__with_libyaml__:
            yield _bundled("libyaml", "pyyaml", yaml._yaml.get_version_string(), "PyYAML")


def _bundled(name: str, vendor: str, version: str, package: str) -> Component:
    return {
        "type": "library",
        "bom-ref": f"{package}:{name}",
        "name": name,
        "version": version,
        "description": f"linked into {package}",
        "cpe": f"cpe:2.3:a:{vendor}:{name}:{version}:*:*:*:*:*:*:*",
        "purl": f"pkg:generic/{name}@{version}",
    }


def _shared_files(sources: dict[str, Path]) -> Iterable[Component]:
    """Yields C libraries, the dynamic loader and the CA bundle; one component for each Debian package."""
    packages: dict[str, Component] = {}
    for path, source in sources.items():
        if Path(path).parent != Path(python_runtime.LIBRARIES) and path.startswith(python_runtime.HOME):
            continue
        # No package contains the CA bundle: the package's script writes it.
        package = None if source.suffix in (".crt", ".pem") else _debian_package(source)
        if package is None:
            yield {
                "type": "file",
                "bom-ref": f"file:{path}",
                "name": path,
                "hashes": _hashes(source),
            }
        else:
            packages[package.purl] = {
                "type": "library",
                "bom-ref": package.purl,
                "name": package.name,
                "version": package.version,
                "purl": package.purl,
            }
    yield from packages.values()


@dataclass(frozen=True)
class _DebianPackage:
    name: str
    version: str
    architecture: str
    distribution: str

    @property
    def purl(self) -> str:
        version = quote(self.version, safe="")
        return f"pkg:deb/debian/{self.name}@{version}?arch={self.architecture}&distro={self.distribution}"


def _debian_package(path: Path) -> _DebianPackage | None:
    """Returns the Debian package that contains a file of this machine."""
    if shutil.which("dpkg-query") is None:
        return None
    # Where /lib is a link to /usr/lib, dpkg knows a file by either path.
    for known in (str(path), str(path).removeprefix("/usr")):
        owner = _dpkg_query("--search", known)
        if owner:
            name = owner.partition(": ")[0].partition(",")[0]
            fields = _dpkg_query("--show", "--showformat=${Package} ${Version} ${Architecture}", name).split()
            release = platform.freedesktop_os_release()
            distribution = f"{release.get('ID', 'debian')}-{release.get('VERSION_ID', 'sid')}"
            return _DebianPackage(fields[0], fields[1], fields[2], distribution)
    return None


def _dpkg_query(*arguments: str) -> str:
    done = subprocess.run(["dpkg-query", *arguments], capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else ""


def _hashes(path: Path) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]
