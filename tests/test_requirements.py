"""The lock files satisfy pyproject.toml, with hashes; the installed versions are the locked ones."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import build_backend

ROOT = Path(__file__).parent.parent
DOCUMENT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = DOCUMENT["project"]
EXTRAS = {
    "runtime.lock": (),
    "dev.lock": ("dev", "interop"),
    "fuzz.lock": ("fuzz",),
}
# Locked from an .in file of the same name.
INPUTS = ("build.lock", "docs.lock", "release.lock")
LOCKS = sorted(path.name for path in (ROOT / "requirements").glob("*.lock"))
ENTRY = re.compile(r"(?m)^(\S[^\n\\]*?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def locked(name: str) -> dict[str, Requirement]:
    """Returns the requirements of a lock file by name; each line must be one with hashes or a comment."""
    text = (ROOT / "requirements" / name).read_text()
    rest = ENTRY.sub("", text)
    assert [line for line in rest.splitlines() if line.strip() and not line.lstrip().startswith("#")] == []
    return {
        canonicalize_name(each.name): each for each in (Requirement(line) for line, _ in ENTRY.findall(text))
    }


def listed(lock: str) -> list[str]:
    """Returns the requirements in the .in file of a lock."""
    lines = (ROOT / "requirements" / lock).with_suffix(".in").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def version_of(requirement: Requirement) -> str:
    (specifier,) = requirement.specifier
    assert specifier.operator == "=="
    return specifier.version


def unsatisfied(wanted: list[str], found: dict[str, Requirement]) -> list[str]:
    missing = []
    for text in wanted:
        requirement = Requirement(text)
        entry = found.get(canonicalize_name(requirement.name))
        if entry is None or version_of(entry) not in requirement.specifier:
            missing.append(text)
    return missing


def test_every_lock_file_is_checked_here() -> None:
    assert sorted([*EXTRAS, *INPUTS, "azure-cli.lock", "clouds.lock", "tools.lock"]) == LOCKS


@pytest.mark.parametrize("name", INPUTS)
def test_a_lock_file_satisfies_its_input(name: str) -> None:
    assert unsatisfied(listed(name), locked(name)) == []


def test_wheels_are_built_with_what_pip_would_use() -> None:
    """pip gets the requirements from pyproject.toml and build_backend, `make wheel` from the lock."""
    wanted = [*DOCUMENT["build-system"]["requires"], *build_backend.COMPILE_REQUIREMENTS]
    assert sorted(listed("build.lock")) == sorted(wanted)


def test_azure_cli_fits_its_core() -> None:
    """It is installed without its dependencies, so pip does not check that."""
    assert version_of(locked("azure-cli.lock")["azure-cli"]) == version_of(
        locked("clouds.lock")["azure-cli-core"]
    )


@pytest.mark.parametrize("name", list(EXTRAS))
def test_a_lock_file_satisfies_pyproject(name: str) -> None:
    """After a change there, run `make lock`."""
    extras = [each for extra in EXTRAS[name] for each in PROJECT["optional-dependencies"][extra]]
    assert unsatisfied([*PROJECT["dependencies"], *extras], locked(name)) == []


def test_a_lock_file_that_is_too_old_is_noticed() -> None:
    """The check above can fail."""
    assert unsatisfied(["hpack>=999", "missing-package"], locked("dev.lock")) == [
        "hpack>=999",
        "missing-package",
    ]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_names_no_registry(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()
    assert re.findall(r"https?://\S+|--(?:extra-)?index-url.*|--find-links.*", text) == []


def test_one_version_of_a_package_is_locked_everywhere() -> None:
    found: dict[str, set[str]] = {}
    for name in (*EXTRAS, *INPUTS):
        for package, requirement in locked(name).items():
            found.setdefault(package, set()).add(version_of(requirement))
    assert {package: versions for package, versions in found.items() if len(versions) > 1} == {}


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="an environment made before a change of the lock")
def test_the_installed_versions_are_the_locked_ones() -> None:
    """So are those in an image, which contains the packages of the environment that builds it."""
    environment = default_environment()
    different = []
    for name, requirement in locked("dev.lock").items():
        if requirement.marker is None or requirement.marker.evaluate({**environment}):
            installed = metadata.version(name)
            if installed != version_of(requirement):
                different.append(f"{name}: {installed}, locked {version_of(requirement)}")
    assert different == []


def test_every_package_is_audited_except_those_of_the_cloud_clis() -> None:
    unaudited = set(LOCKS) - set(runpy.run_path(str(ROOT / "requirements/audit"))["LOCKS"])
    assert unaudited == {"azure-cli.lock", "clouds.lock", "runtime.lock"}
    assert locked("runtime.lock").keys() <= locked("dev.lock").keys()


FAKE = """#!{python}
import json, sys
print(json.dumps({{"dependencies": {packages}}}))
"""


@pytest.mark.parametrize(
    ("packages", "code", "text"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "no known vulnerability in 1 packages"),
        (
            [{"name": "a", "skip_reason": "not found"}],
            3,
            "NOT RUN: 1 of 1 packages not found in the database",
        ),
        (
            [{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}],
            1,
            "a 1: X-1 (fixed in: 2)",
        ),
        ([], 3, "NOT RUN"),
    ],
)
def test_an_audit_that_did_not_run_is_not_a_success(
    tmp_path: Path, packages: list[dict[str, object]], code: int, text: str
) -> None:
    """pip-audit itself ends with 0 if it found no package in the database."""
    program = tmp_path / "pip-audit"
    program.write_text(FAKE.format(python=sys.executable, packages=packages))
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, ROOT / "requirements/audit", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, text in done.stdout) == (code, True), done.stdout + done.stderr
