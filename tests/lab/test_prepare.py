"""`make kubernetes` and `bootbridge lab prepare`: named before it is installed, built once, refused early."""

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
# Says what it is asked for, and where it is asked to, builds.
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
    """A folder for PATH with the tools that scripts need, and nothing else."""
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


def test_what_is_built_is_not_built_again(programs: Path, tmp_path: Path) -> None:
    place(programs / "go", GO)
    assert "kubectl: built in" in build(programs, tmp_path, "kubectl").stdout
    again = build(programs, tmp_path, "kubectl")
    assert (again.returncode, "kubectl: up to date" in again.stdout) == (0, True)
    calls = (programs / "go.calls").read_text().splitlines()
    assert len([call for call in calls if call.startswith("build ")]) == 1
    assert os.access(tmp_path / "bin" / "kubectl", os.X_OK)


@pytest.mark.parametrize("words", [["--check"], ["kubectl"]])
def test_without_go_it_is_said_where_to_get_it(programs: Path, tmp_path: Path, words: list[str]) -> None:
    done = build(programs, tmp_path, *words)
    assert done.returncode == 3
    assert "https://go.dev/dl" in done.stderr


def test_whether_it_can_be_built_is_asked_without_building(programs: Path, tmp_path: Path) -> None:
    place(programs / "go", GO)
    done = build(programs, tmp_path, "--check")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert (programs / "go.calls").read_text() == "env GOVERSION\n"


# How each is asked, and the module that asks for the newest Go there.
BUILDS = {
    "kubernetes": (["bash", str(SCRIPTS / "build"), "--check"], SCRIPTS / "go.mod"),
    "peers": ([sys.executable, str(ROOT / "peers" / "build")], ROOT / "peers" / "konnectivity" / "go.mod"),
}


@pytest.mark.parametrize("script", list(BUILDS))
@pytest.mark.parametrize(
    ("release", "toolchain", "more"),
    [
        ("go1.19.8", "", ""),
        ("go1.25.9", "local", ", or GOTOOLCHAIN=auto, which fetches it"),
        ("go1.21", "go1.21+local", ", or GOTOOLCHAIN=auto, which fetches it"),
        ("go1.9", "", ""),
        ("", "", ""),
    ],
)
def test_too_old_a_go_is_refused_before_anything_is_built_and_the_release_named_that_is_needed(
    programs: Path, tmp_path: Path, script: str, release: str, toolchain: str, more: str
) -> None:
    done = checked(programs, tmp_path, script, release, toolchain)
    assert done.returncode == 3
    (needed,) = re.findall(r"^go (\S+)$", BUILDS[script][1].read_text(), re.MULTILINE)
    told = (
        f"Go {release.removeprefix('go') or '0'} is too old; Go {needed} or newer: https://go.dev/dl{more}\n"
    )
    assert done.stderr == f"{script}: not built: {told}"


@pytest.mark.parametrize(
    ("release", "toolchain"), [("go1.21.0", "auto"), ("go1.24", "go1.24+auto"), ("devel go1.27-abc", "local")]
)
def test_a_go_that_fetches_itself_a_newer_one_is_new_enough(
    programs: Path, tmp_path: Path, release: str, toolchain: str
) -> None:
    done = checked(programs, tmp_path, "kubernetes", release, toolchain)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def checked(
    programs: Path, out: Path, script: str, release: str, toolchain: str
) -> subprocess.CompletedProcess[str]:
    """What a script says to a Go of some release."""
    place(programs / "go", GO)
    environment = {
        "PATH": str(programs),
        "BOOTBRIDGE_KUBERNETES": str(out),
        "BOOTBRIDGE_PEERS": str(out),
        "STUB_RELEASE": release,
        "STUB_TOOLCHAIN": toolchain,
    }
    return subprocess.run(BUILDS[script][0], env=environment, capture_output=True, text=True)


def test_packages_that_are_there_are_not_spoken_of() -> None:
    done = subprocess.run([ROOT / "peers" / "packages", "sh=dash"], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_who_is_not_root_is_told_what_root_would_install() -> None:
    # By its text: nobody may not look into this folder.
    script = (ROOT / "peers" / "packages").read_text()
    user = NOBODY if os.geteuid() == 0 else None
    argv = ["bash", "-s", "--", "not-here=one", "nor-this=two", "sh=dash"]
    done = subprocess.run(argv, input=script, user=user, cwd="/", capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.endswith("as root: apt-get install --no-install-recommends one two\n")


def test_root_is_told_what_is_installed_and_no_service_starts(programs: Path, tmp_path: Path) -> None:
    """Debian asks policy-rc.d whether a service may start; it is there as long as the installation takes."""
    if os.geteuid() != 0:
        not_run("packages are root's to install")
    for name in ("ls", "sort"):
        (programs / name).symlink_to(str(shutil.which(name)))
    place(programs / "apt-get", APT_GET)
    (own := tmp_path / "sbin").mkdir()
    # In a mount namespace: what the script puts into /usr/sbin is not this machine's.
    inside = f'mount --bind {own} /usr/sbin && PATH={programs} exec bash "$@"'
    script = str(ROOT / "peers" / "packages")
    argv = ["unshare", "--mount", "sh", "-c", inside, "sh", script, "not-here=two", "nor-this=one"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "packages: installing from Debian, as root: one two\n"
    assert (programs / "apt-get.calls").read_text().split() == [
        *("-qq", "install", "--no-install-recommends", "one", "two", "policy-rc.d")
    ]
    assert list(own.iterdir()) == []


def test_make_kubernetes_brings_what_tests_need_as_well() -> None:
    told = (SCRIPTS / "packages").read_text()
    assert all(f"={name}" in told for name in ("shellcheck", "swtpm-tools", "tpm2-tools"))
    assert all(f"={name}" in told for name in components.PACKAGED.values() if name != "util-linux")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree whose scripts only say that they were called."""
    scripts = tmp_path / "peers" / "kubernetes"
    scripts.mkdir(parents=True)
    for name in ("packages", "build"):
        place(scripts / name, f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n[ ! -e {tmp_path}/no-go ]\n')
    monkeypatch.setattr(command, "SOURCES", tmp_path)
    found = components.Components({"kube-apiserver": tmp_path}, tmp_path)
    monkeypatch.setattr(components, "find", lambda *_, **__: found)
    return tmp_path


@pytest.mark.parametrize(
    ("brought", "calls"),
    [
        (None, ["build --check", "packages", "build"]),
        (["kubelet"], ["build --check", "packages", "build pause etcd"]),
        (["kubelet", "pause", "etcd"], ["packages"]),
    ],
)
def test_prepare_installs_packages_and_builds_what_was_not_brought(
    sources: Path, brought: list[str] | None, calls: list[str]
) -> None:
    for name in brought or []:
        (sources / name).touch()
    flags = [] if brought is None else ["--bin-dir", str(sources)]
    assert main(["lab", "prepare", *flags]) == 0
    assert [line.strip() for line in (sources / "calls").read_text().splitlines()] == calls


def test_prepare_installs_nothing_where_nothing_can_be_built(sources: Path) -> None:
    (sources / "no-go").touch()
    assert main(["lab", "prepare"]) == 1
    assert (sources / "calls").read_text() == "build --check\n"


def test_binaries_of_a_release_need_nothing_beside_them_but_what_is_built_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components, "PACKAGED", {})
    monkeypatch.setattr(components, "CNI_PLUGINS", ())
    monkeypatch.setattr(components, "CNI_DIRECTORIES", (tmp_path,))
    monkeypatch.setenv("BOOTBRIDGE_KUBERNETES", str(tmp_path / "ours"))
    (brought := tmp_path / "brought").mkdir()
    (ours := tmp_path / "ours" / "bin").mkdir(parents=True)
    for name in components.KUBERNETES:
        place(brought / name, "")
    with pytest.raises(OperatorError, match="make kubernetes KUBERNETES='pause'"):
        components.find(brought)
    place(ours / components.PAUSE, "")
    found = components.find(brought)
    assert found.programs[components.PAUSE] == ours / components.PAUSE
    assert found.programs["kubelet"] == brought / "kubelet"


def test_what_is_built_elsewhere_is_found_from_the_repository_s_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the scripts that build it have it, wherever one is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOOTBRIDGE_KUBERNETES", "elsewhere")
    assert components.default_bin_dir() == ROOT / "elsewhere" / "bin"
    monkeypatch.setenv("BOOTBRIDGE_PEERS", str(tmp_path))
    place(tmp_path / "proxy-server", "")
    assert components.konnectivity_programs() is None
    place(tmp_path / "proxy-agent", "")
    assert components.konnectivity_programs() == tmp_path
