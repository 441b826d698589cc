"""What a person meets in the first minutes: typing errors, missing rights, pipes, narrow terminals, help."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bootbridge.cli import check, down, gather, lab, main, status, up
from bootbridge.cli.lab_next_steps import in_this_lab
from bootbridge.cli.reference.specification import specifications
from tests.support import ignition_documents
from tests.support.not_run import not_run

NOBODY = 65534
# Modules that commands import lazily must be loaded before the rights are given up.
LOADED = (check, down, gather, lab, status, up)
COMMANDS = {
    name.removeprefix("bootbridge").strip(): each for name, each in specifications(main.COMMAND).items()
}
AWS = ["--platform=aws", "--infra-id=demo-7xk2p"]


# --- typing errors


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["up", "--platform=awss"], "up: --platform: invalid value 'awss' (did you mean aws?)"),
        (["schema", "polcy"], "schema: NAME: invalid value 'polcy' (did you mean policy?)"),
        (["completion", "x"], "completion: SHELL: invalid value 'x' (one of: bash, zsh, fish)"),
        (
            ["node", "run", "--log-format=jsn"],
            "node run: --log-format: invalid value 'jsn' (did you mean json?)",
        ),
        (
            ["render", "--output=x", "--flavour=foo"],
            "render: --flavour: invalid value 'foo' (one of: openshift, kubeadm)",
        ),
        (
            ["up", "--machine-network=10.0.0.0"],
            "up: --machine-network: prefix length missing in '10.0.0.0' (write it as 10.0.0.0/24, or "
            "10.0.0.0/32 for this one address)",
        ),
        (
            ["up", "--machine-network=10.0.0.1/16"],
            "up: --machine-network: invalid CIDR '10.0.0.1/16' (bits are set behind the prefix length: write "
            "10.0.0.0/16)",
        ),
        (
            ["up", "--machine-network=10.0.0"],
            "up: --machine-network: invalid CIDR '10.0.0' (for example 10.0.0.0/16 or fd00::/48)",
        ),
        (
            ["up", "--image=a b"],
            "up: --image: invalid image reference 'a b' (for example registry.example/bootbridge:0.2.0)",
        ),
        (
            ["up", "--agent-port=x"],
            "up: --agent-port: invalid number 'x' (run 'bootbridge up --help' for usage)",
        ),
        (["gather", "--out"], "gather: --out: value missing (run 'bootbridge gather --help' for usage)"),
        (
            ["kasconfig", "--flags", "--diff"],
            "kasconfig: --diff: not allowed together with --flags (run 'bootbridge kasconfig --help' for "
            "usage)",
        ),
        (
            ["kasconfig"],
            "kasconfig: the following arguments are required: BASE (run 'bootbridge kasconfig --help' for "
            "usage)",
        ),
        (["man", "xyz"], "man: unknown command 'xyz' (run 'bootbridge --help' for the commands)"),
        (
            ["address", "--service-network=fd00::"],
            "address: --service-network: prefix length missing in 'fd00::' (write it as fd00::/64, or "
            "fd00::/128 for this one address)",
        ),
    ],
)
def test_an_invalid_value_is_answered_with_what_is_valid(
    argv: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(argv) == 1
    assert capsys.readouterr().err == f"bootbridge {error}\n"


# --- help


@pytest.mark.parametrize("command", ["status", "doctor", "gather", "down", "address", "firewall show"])
def test_help_lists_no_flag_that_has_no_effect(command: str) -> None:
    """The recorded plan decides these, or no part of the command reads them."""
    flags = {name for flag in COMMANDS[command].flags for name in flag.names}
    assert flags & {"--validity", "--image", "--protocol", "--host-network", "--cluster-network"} == set()
    assert "--apply" not in flags


@pytest.mark.parametrize("columns", [40, 60])
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "lab kubectl"])
def test_help_fits_a_narrow_terminal(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words wrap, and are not broken. Examples are to be copied, so the terminal wraps them."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main.main([*command.split(), "--help"]) == 0
    page = re.sub(r"\nExamples:\n(( .*)?\n)*", "\n", capsys.readouterr().out)
    wide = [line for line in page.splitlines() if len(line) > columns]
    assert [line for line in wide if len(line.split()) > 2] == []
    assert not re.search(r"--[a-z]+-\n", page)


# --- rights


def as_nobody(argv: list[str]) -> tuple[int, str, str]:
    """Runs a command in a child without root's rights; returns its exit code, stdout and stderr."""
    (out_reader, out), (err_reader, err) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            with (
                open(out, "w") as stdout,
                open(err, "w") as stderr,
                contextlib.redirect_stdout(stdout),
                contextlib.redirect_stderr(stderr),
            ):
                code = main.main(argv)
        finally:
            os._exit(code)
    os.close(out)
    os.close(err)
    with open(out_reader) as stdout, open(err_reader) as stderr:
        texts = stdout.read(), stderr.read()
    _, wait_status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(wait_status), *texts


@pytest.mark.parametrize(
    "command", [["up", "--image=registry.example/b:1"], ["down"], ["down", "--dry-run"], ["lab", "up"]]
)
def test_a_command_that_needs_root_says_so_in_one_sentence(command: list[str]) -> None:
    name = "lab up" if command == ["lab", "up"] else command[0]
    expected = f"bootbridge {name}: permission denied (run it as root)\n"
    assert as_nobody(command) == (1, "", expected)


@pytest.mark.parametrize("command", [["status"], ["doctor"], ["check", "--live"], ["gather"]])
def test_files_that_cannot_be_read_are_not_taken_for_absent(command: list[str], tmp_path: Path) -> None:
    """An installation whose directory only root can read would look as if there were none."""
    if os.geteuid() != 0:
        not_run("needs root, to create a directory that another user cannot read")
    state = tmp_path / "etc/kubernetes/bootbridge"
    state.mkdir(parents=True)
    state.chmod(0o700)
    for parent in (tmp_path, *list(tmp_path.parents)[:3]):
        if parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    code, out, err = as_nobody([*command, "--root", str(tmp_path)])
    assert (code, out) == (1, "")
    assert err == f"bootbridge {command[0]}: permission denied (run it as root)\n"


# --- pipes

PIPED = {
    "help": [],
    "version": [],
    "schema": ["node"],
    "completion": ["bash"],
    "man": ["up"],
    "address": ["--node-ip=192.0.2.5"],
    "render": ["--output={folder}/rendered"],
    "inject": ["{folder}/bootstrap.ign", "-o", "-"],
    "check": ["--live", "--root={folder}"],
    "status": ["--root={folder}"],
    "doctor": ["--root={folder}"],
    "up": ["--root={folder}", "--dry-run", "--image=registry.example/b:1", "--node-ip=192.0.2.5"],
    "down": ["--root={folder}", "--dry-run"],
    "firewall show": AWS,
    "firewall create": AWS,
    "certs create": ["--dir={folder}/certs"],
    "kasconfig": ["{folder}/a.yaml"],
    "node secret": ["--out={folder}/init-secret"],
}


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("command", PIPED)
def test_a_closed_pipe_is_not_an_error(
    command: str, as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with `bootbridge COMMAND | head -1`, when `head` has ended before the first line."""
    has_json = any("--json" in flag.names for flag in COMMANDS[command].flags)
    if as_json and (not has_json or command == "inject"):
        return
    (tmp_path / "bootstrap.ign").write_text(json.dumps(ignition_documents.document()))
    (tmp_path / "a.yaml").write_text("apiServerArguments: {v: ['2']}\n")
    reader, writer = os.pipe()
    os.close(reader)
    argv = [*command.split(), *(word.format(folder=tmp_path) for word in PIPED[command])]
    with open(writer, "w", closefd=False) as stdout, contextlib.redirect_stdout(stdout):
        assert main.main([*argv, "--json"] if as_json else argv) in (0, 2)
        with contextlib.suppress(BrokenPipeError):
            stdout.close()
    os.close(writer)
    assert "Traceback" not in capsys.readouterr().err


# --- single commands


def test_inject_writes_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-o -` is stdout, not a file of that name; the given file stays as it is."""
    given = tmp_path / "bootstrap.ign"
    given.write_text(json.dumps(ignition_documents.document()))
    before = given.read_bytes()
    with contextlib.chdir(tmp_path):
        assert main.main(["inject", "bootstrap.ign", "-o", "-"]) == 0
    output = capsys.readouterr()
    paths = [each["path"] for each in json.loads(output.out)["storage"]["files"]]
    assert any("bootbridge" in path for path in paths)
    assert (output.err, given.read_bytes(), [each.name for each in tmp_path.iterdir()]) == (
        "",
        before,
        ["bootstrap.ign"],
    )


def test_render_says_which_files_close_the_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main.main(["render", f"--output={tmp_path}/x", "--flavour=kubeadm", "--image=r/b:1", *AWS, "--json"])
        == 0
    )
    purposes = {row["path"]: row["purpose"] for row in json.loads(capsys.readouterr().out)}
    assert purposes["firewall/create.sh"] == "opens the agents' port on the bootstrap node to the nodes"
    assert purposes["firewall/remove.sh"] == "closes the agents' port again, after the bootstrap"


def test_the_join_service_outside_a_cluster_ends_with_the_reason() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")}
    done = subprocess.run(
        [sys.executable, "-m", "bootbridge.cli.main", "join-service"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "bootbridge join-service: --kubeconfig: not inside a cluster: KUBERNETES_SERVICE_HOST and "
        "KUBERNETES_SERVICE_PORT are not set (set --kubeconfig=FILE outside a pod)"
    )


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], "bootbridge lab tunnel"),
        (["--dir", "/tmp/my lab"], "bootbridge lab --dir '/tmp/my lab' tunnel"),
        (["--dir=/l", "--bin-dir=/b"], "bootbridge lab --dir /l --bin-dir /b tunnel"),
    ],
)
def test_the_next_command_of_a_lab_is_for_the_same_lab(words: list[str], command: str) -> None:
    lab_up = lab.COMMAND.commands()["up"]
    flags = lab_up.parser("bootbridge lab up").parse_args(words)  # type: ignore[union-attr]
    assert in_this_lab(flags, [("bootbridge lab tunnel", "why")]) == [(command, "why")]


def test_the_status_of_an_instance_without_a_tpm_names_the_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the register in a file the status is healthy; with the default, it says what to set."""
    (tmp_path / "token").write_text("dev.0123456789abcdef\n")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "instance.yaml").write_text("name: n1\nrole: worker\naddresses: [192.0.2.1]\n")
    settings = (
        f"metadata: {{static: {{file: {tmp_path}/instance.yaml}}}}\n"
        f"evidence: {{token: {{file: {tmp_path}/token}}}}\n"
        f"state: {tmp_path}/state\nrun: {tmp_path}/run\n"
    )
    node = tmp_path / "node.yaml"
    node.write_text(f"{settings}register: {tmp_path}/register\n")
    assert main.main(["node", "status", f"--config={node}"]) == 0
    assert "waits for an init or a ticket" in capsys.readouterr().out
    if Path("/dev/tpmrm0").exists():
        return
    node.write_text(settings)
    assert main.main(["node", "status", f"--config={node}"]) == 2
    assert "set `register: /run/bootbridge-node/register` in node.yaml" in capsys.readouterr().out
