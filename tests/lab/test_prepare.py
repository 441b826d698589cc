"""`make kubernetes`, `make peers` and `bootbridge lab prepare`: what they build, install and reject."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bootbridge.cli import lab as command
from bootbridge.cli.main import main
from bootbridge.errors import OperatorError
from bootbridge.lab import components
from tests.support.not_run import not_run
from tests.support.process_program import ROOT

SCRIPTS = ROOT / "peers" / "kubernetes"
NOBODY = 65534
TOOLS = ("bash", "cat", "chmod", "cut", "dirname", "grep", "mkdir", "mv", "rm", "sed", "sha256sum", "sleep")
# A fake `go`: logs its arguments, and writes the file that -o names.
GO = """#!/bin/sh
echo "$*" >> "$0.calls"
case "$1 ${2-}" in
"version ") echo go0 ;;
"env GOVERSION") echo "${STUB_RELEASE-go1.99}" ;;
"env GOTOOLCHAIN") echo "${STUB_TOOLCHAIN-local}" ;;
esac
while [ $# -gt 1 ]; do [ "$1" != -o ] || { echo program > "$2"; chmod +x "$2"; }; shift; done
"""
APT_GET = """#!/bin/sh
echo "$*" "$(ls /usr/sbin)" >> "$0.calls"
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory for PATH that contains only the tools that the scripts need."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    return folder


def place(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def build(programs: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(programs), "BOOTBRIDGE_KUBERNETES": str(out)}
    argv = ["bash", str(SCRIPTS / "build"), *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True)


def test_built_program_is_not_built_again(programs: Path, tmp_path: Path) -> None:
    place(programs / "go", GO)
    assert "kubectl: built in" in build(programs, tmp_path, "kubectl").stdout
    again = build(programs, tmp_path, "kubectl")
    assert (again.returncode, "kubectl: up to date" in again.stdout) == (0, True)
    calls = (programs / "go.calls").read_text().splitlines()
    assert len([call for call in calls if call.startswith("build ")]) == 1
    assert os.access(tmp_path / "bin" / "kubectl", os.X_OK)


@pytest.mark.parametrize("words", [["--check"], ["kubectl"]])
def test_missing_go_is_reported_with_its_download_page(
    programs: Path, tmp_path: Path, words: list[str]
) -> None:
    done = build(programs, tmp_path, *words)
    assert done.returncode == 3
    assert "https://go.dev/dl" in done.stderr


def test_check_builds_nothing(programs: Path, tmp_path: Path) -> None:
    place(programs / "go", GO)
    done = build(programs, tmp_path, "--check")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert (programs / "go.calls").read_text() == "env GOVERSION\n"


# The command, and the module that requires the newest Go.
BUILDS = {
    "kubernetes": (["bash", str(SCRIPTS / "build"), "--check"], SCRIPTS / "go.mod"),
    "peers": ([sys.executable, str(ROOT / "peers" / "build")], ROOT / "peers" / "konnectivity" / "go.mod"),
}


@pytest.mark.parametrize("script", list(BUILDS))
@pytest.mark.parametrize(
    ("release", "toolchain", "more"),
    [
        ("go1.19.8", "", ""),
        ("go1.25.9", "local", ", or set GOTOOLCHAIN=auto"),
        ("go1.21", "go1.21+local", ", or set GOTOOLCHAIN=auto"),
        ("go1.9", "", ""),
        ("", "", ""),
    ],
)
def test_old_go_is_rejected_with_the_required_release(
    programs: Path, tmp_path: Path, script: str, release: str, toolchain: str, more: str
) -> None:
    done = checked(programs, tmp_path, script, release, toolchain)
    assert done.returncode == 3
    (needed,) = re.findall(r"^go (\S+)$", BUILDS[script][1].read_text(), re.MULTILINE)
    problem = f"Go {release.removeprefix('go') or '0'} is too old"
    fix = f"install Go {needed} or newer: https://go.dev/dl{more}"
    assert done.stderr == f"{script}: {problem} ({fix})\n"


@pytest.mark.parametrize(
    ("release", "toolchain"), [("go1.21.0", "auto"), ("go1.24", "go1.24+auto"), ("devel go1.27-abc", "local")]
)
def test_go_that_downloads_a_newer_toolchain_is_accepted(
    programs: Path, tmp_path: Path, release: str, toolchain: str
) -> None:
    done = checked(programs, tmp_path, "kubernetes", release, toolchain)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def checked(
    programs: Path, out: Path, script: str, release: str, toolchain: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script with a fake Go of that release."""
    place(programs / "go", GO)
    environment = {
        "PATH": str(programs),
        "BOOTBRIDGE_KUBERNETES": str(out),
        "BOOTBRIDGE_PEERS": str(out),
        "STUB_RELEASE": release,
        "STUB_TOOLCHAIN": toolchain,
    }
    return subprocess.run(BUILDS[script][0], env=environment, capture_output=True, text=True)


def test_nothing_is_printed_if_all_packages_are_installed() -> None:
    done = subprocess.run([ROOT / "peers" / "packages", "sh=dash"], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_non_root_user_gets_the_install_command() -> None:
    # Passed on stdin: the unprivileged user may not read this directory.
    script = (ROOT / "peers" / "packages").read_text()
    user = NOBODY if os.geteuid() == 0 else None
    argv = ["bash", "-s", "--", "not-here=one", "nor-this=two", "sh=dash"]
    done = subprocess.run(argv, input=script, user=user, cwd="/", capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.endswith("(run as root: apt-get install --no-install-recommends one two)\n")


def test_root_installs_packages_without_starting_services(programs: Path, tmp_path: Path) -> None:
    """policy-rc.d, which forbids service starts, exists only during the installation."""
    if os.geteuid() != 0:
        not_run("only root can install packages")
    for name in ("ls", "sort"):
        (programs / name).symlink_to(str(shutil.which(name)))
    place(programs / "apt-get", APT_GET)
    (own := tmp_path / "sbin").mkdir()
    # In a mount namespace, so that the script does not change this machine's /usr/sbin.
    inside = f'mount --bind {own} /usr/sbin && PATH={programs} exec bash "$@"'
    script = str(ROOT / "peers" / "packages")
    argv = ["unshare", "--mount", "sh", "-c", inside, "sh", script, "not-here=two", "nor-this=one"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "packages: installing Debian packages: one two\n"
    assert (programs / "apt-get.calls").read_text().split() == [
        *("-qq", "-o", "DPkg::Lock::Timeout=300", "install", "--no-install-recommends"),
        *("one", "two", "policy-rc.d"),
    ]
    assert list(own.iterdir()) == []


def test_make_kubernetes_installs_the_packages_of_the_tests() -> None:
    script = (SCRIPTS / "packages").read_text()
    assert all(f"={name}" in script for name in ("shellcheck", "swtpm-tools", "tpm2-tools"))
    assert all(f"={name}" in script for name in components.PACKAGED.values() if name != "util-linux")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree whose scripts only log their calls."""
    scripts = tmp_path / "peers" / "kubernetes"
    scripts.mkdir(parents=True)
    for name in ("packages", "build"):
        place(scripts / name, f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n[ ! -e {tmp_path}/no-go ]\n')
    monkeypatch.setattr(command, "SOURCES", tmp_path)
    found = components.Components({"kube-apiserver": tmp_path}, tmp_path)
    monkeypatch.setattr(components, "find", lambda *_, **__: found)
    return tmp_path


@pytest.mark.parametrize(
    ("present", "calls"),
    [
        (None, ["build --check", "packages", "build"]),
        (["kubelet"], ["build --check", "packages", "build pause etcd"]),
        (["kubelet", "pause", "etcd"], ["packages"]),
    ],
)
def test_prepare_installs_packages_and_builds_missing_programs(
    sources: Path, present: list[str] | None, calls: list[str]
) -> None:
    for name in present or []:
        (sources / name).touch()
    flags = [] if present is None else ["--bin-dir", str(sources)]
    assert main(["lab", "prepare", *flags]) == 0
    assert [line.strip() for line in (sources / "calls").read_text().splitlines()] == calls


def test_prepare_installs_nothing_if_nothing_can_be_built(sources: Path) -> None:
    (sources / "no-go").touch()
    assert main(["lab", "prepare"]) == 1
    assert (sources / "calls").read_text() == "build --check\n"


def test_release_binaries_are_combined_with_programs_built_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components, "PACKAGED", {})
    monkeypatch.setattr(components, "CNI_PLUGINS", ())
    monkeypatch.setattr(components, "CNI_DIRECTORIES", (tmp_path,))
    monkeypatch.setenv("BOOTBRIDGE_KUBERNETES", str(tmp_path / "ours"))
    (release := tmp_path / "release").mkdir()
    (ours := tmp_path / "ours" / "bin").mkdir(parents=True)
    for name in components.KUBERNETES:
        place(release / name, "")
    with pytest.raises(OperatorError, match="make kubernetes KUBERNETES='pause'"):
        components.find(release)
    place(ours / components.PAUSE, "")
    found = components.find(release)
    assert found.programs[components.PAUSE] == ours / components.PAUSE
    assert found.programs["kubelet"] == release / "kubelet"


def test_relative_build_directories_start_at_the_repository_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the build scripts, independent of the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOOTBRIDGE_KUBERNETES", "elsewhere")
    assert components.default_bin_dir() == ROOT / "elsewhere" / "bin"
    monkeypatch.setenv("BOOTBRIDGE_PEERS", str(tmp_path))
    place(tmp_path / "proxy-server", "")
    assert components.konnectivity_programs() is None
    place(tmp_path / "proxy-agent", "")
    assert components.konnectivity_programs() == tmp_path
