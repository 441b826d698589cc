"""The same actions as a POSIX shell script, for where the cloud's CLI is but Python is not. It needs jq."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from bootbridge.bootstrap.firewall.json_query import jq_filter
from bootbridge.bootstrap.firewall.model import PLACEHOLDER, FirewallAction, Lookup, Then

_HELPERS = r"""
set -eu
export AWS_PAGER='' CLOUDSDK_CORE_DISABLE_PROMPTS=1

errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

fail() {
    printf '  failed: %s\n' "$1" >&2
    exit 1
}

need() {
    command -v "$1" >/dev/null 2>&1 || fail "$1 is not installed"
}

# says TEXTS: whether the last command complained about one of these, one per line.
says() {
    [ -n "$1" ] && grep -qF -e "$1" "$errors"
}

# look TEXTS FILTER COMMAND...: what jq finds in the command's answer; TEXTS mean that nothing is there.
look() {
    texts=$1 filter=$2
    shift 2
    if answer=$("$@" 2>"$errors" </dev/null); then
        found=$(printf '%s\n' "$answer" | jq -r "$filter") || fail "$1 gave no sensible answer"
    elif says "$texts"; then
        found=''
    else
        cat "$errors" >&2
        fail "$*"
    fi
    case $found in
    *[!A-Za-z0-9._:/~[:space:]-]*) fail "$1 gave an id that cannot be one: $found" ;;
    esac
    printf '%s' "$found"
}

# single WHAT FOUND: no more than one was found.
single() {
    case $2 in
    *[[:space:]]*) fail "$1 is there more than once: $2" ;;
    esac
}

# apply TEXTS COMMAND...: run it; TEXTS mean that it was done before.
apply() {
    texts=$1
    shift
    if "$@" >"$errors" 2>&1 </dev/null; then
        printf '  done\n'
    elif says "$texts"; then
        printf '  already done\n'
    else
        cat "$errors" >&2
        fail "$*"
    fi
}
"""


def render(title: str, actions: Sequence[FirewallAction], *, keep_going: bool) -> str:
    """The script; with `keep_going` a failed step does not keep the next ones from being tried."""
    after = "|| failed=1" if keep_going else "|| exit 1"
    lines = ["#!/bin/sh", f"# {title}", "# Safe to run again: what was done before is left alone."]
    lines += _HELPERS.strip("\n").splitlines()
    lines += ["", *(f"need {shlex.quote(program)}" for program in _programs(actions)), "failed=0"]
    for number, action in enumerate(actions, 1):
        lines += ["", f"step_{number}() {{", *(f"    {line}" for line in _step(action)), "}"]
    lines += [
        "",
        *(f"(step_{number}) {after}" for number in range(1, len(actions) + 1)),
        'exit "$failed"',
        "",
    ]
    return "\n".join(lines)


def command_line(argv: Iterable[str], lookups: Iterable[Lookup] = ()) -> str:
    """A command as a person would type it; placeholders become shell variables."""
    many = {lookup.variable for lookup in lookups if lookup.many}
    return " ".join(_word(word, many) for word in argv)


def _programs(actions: Sequence[FirewallAction]) -> list[str]:
    lookups = ["jq"] if any(action.lookups for action in actions) else []
    return [*dict.fromkeys(action.program for action in actions), *lookups]


def _step(action: FirewallAction) -> list[str]:
    lines = [f"printf '%s\\n' {shlex.quote(action.does)}"]
    for lookup in action.lookups:
        lines += _look(lookup)
    if any(lookup.many for lookup in action.lookups):
        lines.append("# shellcheck disable=SC2086 # several words are meant; look() let nothing odd through")
    return [*lines, f"apply {_texts(action.already)} {command_line(action.argv, action.lookups)}"]


def _look(lookup: Lookup) -> list[str]:
    variable = lookup.variable
    words = command_line(lookup.argv)
    gone = _texts(lookup.gone)
    lines = [f"{variable}=$(look {gone} {shlex.quote(jq_filter(lookup))} {words}) || exit 1"]
    if lookup.some is Then.NOTHING_TO_DO:
        lines.append(f'[ -z "${variable}" ] || {_nothing_to_do(f"{lookup.seeks} is there")}')
    elif lookup.none is Then.NOTHING_TO_DO:
        lines.append(f'[ -n "${variable}" ] || {_nothing_to_do(f"{lookup.seeks} is not there")}')
    elif lookup.none is Then.FAIL:
        lines.append(f'[ -n "${variable}" ] || fail {shlex.quote(f"{lookup.seeks} is not there")}')
    if not lookup.many and lookup.some is Then.GO_ON:
        lines.append(f'single {shlex.quote(lookup.seeks)} "${variable}"')
    return lines


def _nothing_to_do(reason: str) -> str:
    return f"{{ printf '  nothing to do: %s\\n' {shlex.quote(reason)}; return 0; }}"


def _texts(texts: Sequence[str]) -> str:
    return shlex.quote("\n".join(texts))


def _word(text: str, many: Iterable[str] = ()) -> str:
    """One word for the shell: quoted, with variables where the placeholders were."""
    alone = PLACEHOLDER.fullmatch(text)
    if alone and alone[1] in many:
        return f"${alone[1]}"
    parts = PLACEHOLDER.split(text)  # text, name, text, name, … text
    quoted = (f'"${part}"' if index % 2 else shlex.quote(part) for index, part in enumerate(parts) if part)
    return "".join(quoted) or "''"
