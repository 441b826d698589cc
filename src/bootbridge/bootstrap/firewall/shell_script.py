"""Renders actions as a POSIX shell script, which needs the cloud's CLI and jq, but not Python."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from bootbridge.bootstrap.firewall.json_query import jq_filter
from bootbridge.bootstrap.firewall.model import PLACEHOLDER, FirewallAction, Lookup, Presence

_HELPERS = r"""
set -eu
export AWS_PAGER='' CLOUDSDK_CORE_DISABLE_PROMPTS=1

errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

fail() {
    printf '  failed: %s\n' "$1" >&2
    exit 1
}

require() {
    command -v "$1" >/dev/null 2>&1 || fail "command not found: $1"
}

# error_matches TEXTS: whether the last command printed one of these errors (one per line).
error_matches() {
    [ -n "$1" ] && grep -qF -e "$1" "$errors"
}

# lookup TEXTS FILTER COMMAND...: prints what jq selects from the output; an error in TEXTS means: not found.
lookup() {
    texts=$1 filter=$2
    shift 2
    if answer=$("$@" 2>"$errors" </dev/null); then
        found=$(printf '%s\n' "$answer" | jq -r "$filter") || fail "invalid output of $1"
        # shellcheck disable=SC2016 # $0 is the line in awk
        found=$(printf '%s\n' "$found" | awk '!seen[$0]++')
    elif error_matches "$texts"; then
        found=''
    else
        cat "$errors" >&2
        fail "$*"
    fi
    case $found in
    *[!A-Za-z0-9._:/~[:space:]-]*) fail "invalid ID in the output of $1: $found" ;;
    esac
    printf '%s' "$found"
}

# show WHAT VALUES: prints what the cloud has, in one line.
show() {
    printf '  found %s: %s\n' "$1" "$(printf '%s' "$2" | tr '\n' ' ')"
}

# require_single WHAT FOUND: fails if more than one was found.
# shellcheck disable=SC2317 # not every script needs it
require_single() {
    case $2 in
    *[[:space:]]*) fail "$1 exists more than once: $2" ;;
    esac
}

# apply TEXTS COMMAND...: runs the command; an error in TEXTS means: an earlier run did this.
apply() {
    texts=$1
    shift
    if "$@" >"$errors" 2>&1 </dev/null; then
        printf '  done\n'
    elif error_matches "$texts"; then
        printf '  unchanged\n'
    else
        cat "$errors" >&2
        fail "$*"
    fi
}
"""


def render(title: str, actions: Sequence[FirewallAction], *, keep_going: bool) -> str:
    """Returns the script. With `keep_going`, the steps after a failed one run too."""
    after = "|| failed=1" if keep_going else "|| exit 1"
    lines = ["#!/bin/sh", f"# {title}", "# Idempotent: what an earlier run did is left unchanged."]
    lines += _HELPERS.strip("\n").splitlines()
    lines += ["", *(f"require {shlex.quote(program)}" for program in _programs(actions)), "failed=0"]
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
    """Returns a command for the shell, with variables for the placeholders."""
    many = {lookup.variable for lookup in lookups if lookup.multiple}
    return " ".join(_word(word, many) for word in argv)


def _programs(actions: Sequence[FirewallAction]) -> list[str]:
    lookups = ["jq"] if any(action.lookups for action in actions) else []
    return [*dict.fromkeys(action.program for action in actions), *lookups]


def _step(action: FirewallAction) -> list[str]:
    lines = [f"printf '%s\\n' {shlex.quote(action.description)}"]
    for lookup in action.lookups:
        lines += _look_up(lookup)
    if any(lookup.multiple for lookup in action.lookups):
        lines.append(
            "# shellcheck disable=SC2086 # several words are intended, and lookup() rejects unsafe characters"
        )
    return [*lines, f"apply {_texts(action.already_done)} {command_line(action.argv, action.lookups)}"]


def _look_up(lookup: Lookup) -> list[str]:
    variable, name = lookup.variable, shlex.quote(lookup.description)
    jq = shlex.quote(jq_filter(lookup))
    lines = [f"{variable}=$(lookup {_texts(lookup.not_found)} {jq} {command_line(lookup.argv)}) || exit 1"]
    if lookup.presence is Presence.SKIP_IF_FOUND:
        return [*lines, f'[ -z "${variable}" ] || {_skip(f"{lookup.description} already exists")}']
    show = f'show {name} "${variable}"'
    if lookup.presence is Presence.OPTIONAL:
        return [*lines, f'[ -z "${variable}" ] || {show}']
    required = lookup.presence is Presence.REQUIRED
    otherwise = f"fail {shlex.quote(lookup.missing)}" if required else _skip(lookup.missing)
    single = [] if lookup.multiple else [f'require_single {name} "${variable}"']
    return [*lines, f'[ -n "${variable}" ] || {otherwise}', *single, show]


def _skip(reason: str) -> str:
    return f"{{ printf '  unchanged: %s\\n' {shlex.quote(reason)}; return 0; }}"


def _texts(texts: Sequence[str]) -> str:
    return shlex.quote("\n".join(texts))


def _word(text: str, many: Iterable[str] = ()) -> str:
    """Returns one quoted word for the shell, with variables for the placeholders."""
    alone = PLACEHOLDER.fullmatch(text)
    if alone and alone[1] in many:
        return f"${alone[1]}"
    parts = PLACEHOLDER.split(text)  # text, name, text, name, … text
    quoted = (f'"${part}"' if index % 2 else shlex.quote(part) for index, part in enumerate(parts) if part)
    return "".join(quoted) or "''"
