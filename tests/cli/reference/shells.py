"""Completion in real shells: what each offers for a command line."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

PACKAGES = {
    "bash": "bash",
    "zsh": "zsh",
    "fish": "fish",
    "mandoc": "mandoc",
    "man": "man-db",
    "groff": "groff-base",
}
SECONDS = 120


def require(program: str) -> str:
    """Returns the path of a program; without it the test is skipped, and fails in CI."""
    found = shutil.which(program)
    if found is None:
        text = f"{program} not found (Debian package {PACKAGES[program]})"
        pytest.fail(text) if os.environ.get("CI") == "true" else pytest.skip(text)
    return str(found)


def offered(shell: str, script: Path, lines: Sequence[str]) -> list[set[str]]:
    """Returns what the shell offers at the end of each line. The current directory is that of the script."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](script, lines)


def _run(program: str, script: Path, source: str) -> list[set[str]]:
    """Runs a shell that prints its offers, each list ended by a line with a dot."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(script.parent),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
    }
    argv = {"bash": ["--norc", "--noprofile"], "fish": ["--no-config"]}[program]
    done = subprocess.run(
        [require(program), *argv, "-c", source],
        cwd=script.parent, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return [set(block.split("\n")) - {""} for block in done.stdout.split("\n.\n")[:-1]]


def _bash(script: Path, lines: Sequence[str]) -> list[set[str]]:
    """Calls the function that `complete` has registered, with the words as readline splits them."""
    calls = []
    for line in lines:
        words = [part for word in line.split(" ") for part in _at_equals(word)]
        quoted = " ".join(f"'{word}'" for word in words)
        calls.append(
            f"COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}; COMPREPLY=(); "
            f"$(complete -p {words[0]} | sed 's/.* -F \\([^ ]*\\) .*/\\1/') {words[0]}; "
            'printf "%s\\n" "${COMPREPLY[@]}" "" .'
        )
    # compopt works inside a completion only.
    return _run("bash", script, "\n".join([f"source {script}", "compopt() { :; }", *calls, ""]))


def _at_equals(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    return [name, "=", value] if equals and value else [name, "="] if equals else [word]


def _fish(script: Path, lines: Sequence[str]) -> list[set[str]]:
    calls = [f"complete -C '{line}' | string split -f1 \\t; echo; echo ." for line in lines]
    return _run("fish", script, "\n".join([f"source {script}", *calls]))


def _zsh(script: Path, lines: Sequence[str]) -> list[set[str]]:
    """Types each line and TAB into an interactive zsh, whose `compadd` also records the matches."""
    folder = script.parent
    pipe = folder / "offers"
    os.mkfifo(pipe)
    (folder / ".zshrc").write_text(_ZSHRC.format(script=script, pipe=pipe))
    found: list[set[str]] = []
    with _interactive(require("zsh"), folder) as typed, pipe.open() as offers:
        assert offers.readline() == "ready\n"
        for line in lines:
            os.write(typed, b"\x15" + line.encode() + b"\t\x18")
            found.append({text.rstrip("\n") for text in iter(offers.readline, ".\n")} - {""})
    return found


_ZSHRC = """
unsetopt zle_bracketed_paste beep list_beep
zmodload zsh/complete
PS1='' ; autoload -Uz compinit && compinit -D -u
exec {{offers}}>{pipe}
source {script}
compadd() {{
    local -a options=("${{(@)@[1,(i)(-|--)]}}") hits
    # With these, it only answers a question of the completion system.
    if [[ " $options " == *\\ -[^\\ ]#[OAD]\\ * ]] || (( ${{options[(I)-(O|A|D)]}} )); then
        builtin compadd "$@"
        return
    fi
    builtin compadd -A hits "$@"
    print -rl -u $offers -- $hits
    builtin compadd "$@"
}}
finished() {{ print -r -u $offers -- . }}
zle -N finished
bindkey '^X' finished
bindkey '^I' complete-word
bindkey '^U' kill-whole-line
print -u $offers ready
"""


@contextmanager
def _interactive(program: str, folder: Path) -> Iterator[int]:
    controller, terminal = pty.openpty()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "ZDOTDIR": str(folder),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
    }
    process = subprocess.Popen(
        [program, "-i"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    os.close(terminal)
    # A terminal that is not read blocks its writer.
    reader = threading.Thread(target=_drain, args=(controller,), daemon=True)
    reader.start()
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    try:
        yield controller
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        reader.join()
        os.close(controller)


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:
        pass  # the other end is closed
