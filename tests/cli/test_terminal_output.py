"""The verbs on terminals of several widths, in a pipe, without colour and in the C locale."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootbridge.cli import main
from tests.support.terminal import PseudoTerminal, squeezed, without_colour, without_redrawn

WIDTHS = (60, 80, 120)
NODE = ["--root", "{root}"]
# Name → the words of a verb, and its exit code. {root} is an empty node, {rendered} a rendered directory.
VERBS = {
    "version": (["version"], 0),
    "schema": (["schema"], 0),
    "address": (["address", "--node-ip=192.0.2.5", "--node-ip=fd00::5"], 0),
    "render": (["render", "--output={rendered}"], 0),
    "check": (["check", "{rendered}"], 0),
    "up, dry": (["up", *NODE, "--dry-run", "--image=registry.example/b:1", "--node-ip=192.0.2.5"], 0),
    "down, dry": (["down", *NODE, "--dry-run"], 0),
    "status": (["status", *NODE], 2),
    "doctor": (["doctor", *NODE], 2),
    "firewall": (["firewall", "show", "--platform=aws", "--infra-id=demo-7xk2p"], 0),
    "unknown flag": (["up", "--platfrom=aws"], 1),
}


@pytest.fixture
def words(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], int]:
    argv, code = VERBS[request.param]
    rendered, root = tmp_path / "rendered", tmp_path / "root"
    root.mkdir()
    if request.param == "check":
        with contextlib.redirect_stdout(open(os.devnull, "w")):
            assert main.main(["render", f"--output={rendered}"]) == 0
    return [word.format(root=root, rendered=rendered) for word in argv], code


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("NO_COLOR", "LC_ALL", "LC_CTYPE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("LANG", "C.UTF-8")
    return monkeypatch


def on_terminal(argv: list[str], code: int, columns: int) -> str:
    """Runs a verb with stdout and stderr on one terminal; returns what is left on it."""
    screen = PseudoTerminal(columns)
    with contextlib.redirect_stdout(screen.out), contextlib.redirect_stderr(screen.out):
        assert main.main(argv) == code
    return without_redrawn(screen.text())


def test_a_failed_dial_looks_like_every_other_error(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    """Marked, and wrapped at words."""
    reason = b"dial tcp 10.128.6.20:9443: connect: connection refused"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n" % len(reason)
                connection.sendall(head + reason)

        server = threading.Thread(target=refuse)
        server.start()
        words = [
            "dial",
            "--socket",
            str(tmp_path / "s"),
            "--mode=http-connect",
            "--check",
            "10.128.6.20:9443",
        ]
        text = without_colour(on_terminal(words, 2, 60))
        server.join()
    first, second, *_ = text.splitlines()
    assert first == "✗ bootbridge dial: dial failed (agent to endpoint): dial tcp"
    assert second.startswith("  10.128.6.20:9443: connect: ")


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("words", VERBS, indirect=True)
def test_no_line_is_wider_than_the_terminal(
    words: tuple[list[str], int], columns: int, environment: pytest.MonkeyPatch
) -> None:
    """Commands to type next are exempt: the terminal wraps them, so that they can be copied."""
    text = without_colour(on_terminal(*words, columns))
    assert text.strip()
    body = text.partition("\nNext:\n")[0]
    assert [line for line in body.splitlines() if len(line) > columns] == []
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("words", ["address", "render", "check", "up, dry"], indirect=True)
def test_every_fact_of_the_json_result_is_on_the_terminal(
    words: tuple[list[str], int],
    columns: int,
    environment: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Wrapped, but complete. Fixes are shown for what is wrong only, and names of resources as titles."""
    argv, code = words
    assert main.main([*argv, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    text = squeezed(on_terminal(argv, code, columns))
    hidden = ("fix", "verdict", "resource", "change", "state")
    facts = [fact for name, fact in _strings(document) if name not in hidden]
    assert len(facts) > 3
    assert [fact for fact in facts if squeezed(fact) not in text] == []


def _strings(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _strings(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each, name)
    elif isinstance(value, str):
        yield name, value


@pytest.mark.parametrize("words", ["check", "status", "doctor", "up, dry", "unknown flag"], indirect=True)
def test_colour_is_for_terminals_that_want_it(
    words: tuple[list[str], int], environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    argv, code = words
    coloured = on_terminal(argv, code, 100)
    environment.setenv("NO_COLOR", "1")
    plain = on_terminal(argv, code, 100)
    assert "\x1b" not in plain
    assert without_colour(coloured) == plain
    assert coloured != plain


@pytest.mark.parametrize("words", VERBS, indirect=True)
def test_a_pipe_gets_plain_ascii_in_every_locale(
    words: tuple[list[str], int], environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No colours, no signs, no lines for progress; the C locale changes nothing but characters of texts."""
    argv, code = words
    assert main.main(argv) == code  # the second render finds the files of the first
    capsys.readouterr()
    outputs = []
    for locale in ("C.UTF-8", "C"):
        environment.setenv("LC_ALL", locale)
        assert main.main(argv) == code
        output = capsys.readouterr()
        outputs.append(output.out + output.err)
        assert not set(outputs[-1]) & set("\x1b\r✓✗─│⠋")
    assert outputs[1].isascii()
    assert outputs[0].replace("…", "...") == outputs[1]


@pytest.mark.parametrize("words", ["check", "status", "doctor", "schema"], indirect=True)
def test_a_terminal_in_the_c_locale_gets_ascii(
    words: tuple[list[str], int], environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("LC_ALL", "C")
    assert on_terminal(*words, 80).isascii()


def test_a_pipe_has_one_line_per_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the verdict as its first word, so that grep and awk can find it."""
    assert main.main(["render", f"--output={tmp_path}/rendered"]) == 0
    capsys.readouterr()
    assert main.main(["check", f"{tmp_path}/rendered", "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert main.main(["check", f"{tmp_path}/rendered"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=2)[:2] for line in lines[: len(checks)]] == [
        [check["verdict"], check["name"]] for check in checks
    ]
    assert lines[len(checks)] == ""


@pytest.mark.parametrize("verb", ["doctor", "status", "check"])
def test_a_reader_that_closes_the_pipe_changes_neither_exit_code_nor_stderr(
    verb: str, tmp_path: Path
) -> None:
    """As with `bootbridge doctor | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    argv = [verb, "--live", "--root", str(tmp_path)] if verb == "check" else [verb, "--root", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "bootbridge.cli.main", *argv],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_texts_of_a_document_cannot_control_the_terminal(
    tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    """A file name with markup and escape sequences is shown as text."""
    environment.setenv("NO_COLOR", "1")
    name = "\x1b]0;owned\x07[bold red]x"
    (tmp_path / name).write_text("no ignition")
    text = on_terminal(["check", str(tmp_path / name)], 1, 120)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[boldred]x" in squeezed(text)


HEAVY = ("rich", "pygments", "markdown_it")


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["--unknown"]])
@pytest.mark.parametrize("program", ["server", "agent"])
def test_the_proxies_never_import_rich(program: str, argv: list[str]) -> None:
    """Neither as programs of their own nor as commands of bootbridge."""
    for module, words in ((program, argv), ("main", [program, *argv])):
        code = (
            f"import sys; from bootbridge.cli.{module} import main; main({words!r}); "
            f"print('loaded:', *(name for name in {HEAVY!r} if name in sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "loaded:"
