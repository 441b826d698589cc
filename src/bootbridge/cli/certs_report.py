"""The output of `bootbridge certs`: one record per certificate, a summary and the next commands."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bootbridge.cli.command import ExitCode
from bootbridge.cli.output import print_output, result_terminal
from bootbridge.common.terminal.figures import counted, duration
from bootbridge.common.terminal.terminal import Cell, Mark, Terminal
from bootbridge.trust.certificate_directory import CertificateAction, CertificateResult
from bootbridge.trust.stored_certificate import CertificateRole, CertificateState, StoredCertificate

DEFAULT_DIRECTORY = "certs"


def report(flags: argparse.Namespace, results: Sequence[CertificateResult], verb: str) -> int:
    now = datetime.now(UTC)
    states = {each.stored.state(now) for each in results}
    is_bad = bool(states - {CertificateState.VALID, CertificateState.EXPIRING})
    if flags.json:
        document = {
            "directory": flags.dir,
            "changed": any(each.action is not CertificateAction.UNCHANGED for each in results),
            "valid": not is_bad,
            "certificates": [{**each.stored.document(now), "action": each.action} for each in results],
        }
        print_output(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        _print_records(flags, results, verb, now, result_terminal())
    return ExitCode.FINDINGS if is_bad else ExitCode.OK


_MARKS = {
    CertificateState.VALID: Mark.GOOD,
    CertificateState.EXPIRING: Mark.WARNING,
    CertificateState.EXPIRED: Mark.BAD,
    CertificateState.NOT_YET_VALID: Mark.BAD,
    CertificateState.INVALID: Mark.BAD,
}


def _print_records(
    flags: argparse.Namespace,
    results: Sequence[CertificateResult],
    verb: str,
    now: datetime,
    terminal: Terminal,
) -> None:
    rows: list[tuple[Cell, ...]] = []
    for each in results:
        stored, state = each.stored, each.stored.state(now)
        action = str(state) if verb == "show" else each.action.replace("-", " ")
        lead: Cell = _MARKS[state] if terminal.live else str(state)
        rows.append((lead, stored.name, action, _left(stored, now), _detail(stored)))
    if not terminal.live and verb == "show":
        rows = [(*row[:2], *row[3:]) for row in rows]  # the first word is the state already
    terminal.table(rows)
    mark, sentence = _sentence(flags, results, verb, now)
    terminal.summary(
        mark if terminal.live else Mark.NONE, sentence, next_steps=_next_steps(flags, results, verb, now)
    )


# Below this, the date is not exact enough.
_SOON = timedelta(days=2)


def _left(stored: StoredCertificate, now: datetime) -> str:
    if stored.expires is None:
        return ""
    left = stored.expires - now
    if left < timedelta():
        return f"EXPIRED {stored.expires:%Y-%m-%d}"
    return f"{duration(left.total_seconds())} left" if left < _SOON else f"until {stored.expires:%Y-%m-%d}"


def _detail(stored: StoredCertificate) -> str:
    if stored.problem:
        return stored.problem
    elsewhere = "" if stored.has_key else "the key is not here"
    return "; ".join(filter(None, (", ".join(stored.names), elsewhere)))


def _sentence(
    flags: argparse.Namespace, results: Sequence[CertificateResult], verb: str, now: datetime
) -> tuple[Mark, str]:
    bad = [each.stored.name for each in results if _MARKS[each.stored.state(now)] is Mark.BAD]
    if bad:
        return Mark.BAD, f"{flags.dir}: {', '.join(bad)} cannot be used."
    changed = [each for each in results if each.action is not CertificateAction.UNCHANGED]
    if verb == "show":
        return Mark.GOOD, f"{flags.dir}: {counted(len(results), 'certificate')}, all valid."
    if not changed:
        why = "none is due" if verb == "renew" else "all exist"
        return Mark.GOOD, f"{flags.dir}: nothing changed, {why}."
    done = counted(len(changed), "certificate")
    words = f"{done} issued." if verb == "create" else f"{done} renewed, with the same keys."
    return Mark.GOOD, f"{flags.dir}: {words}"


def _next_steps(
    flags: argparse.Namespace, results: Sequence[CertificateResult], verb: str, now: datetime
) -> list[tuple[str, str]]:
    due = [each.stored for each in results if each.stored.state(now) in _DUE]
    steps = []
    if any(each.role is CertificateRole.CA for each in due):
        why = "renew the CA, then copy ca.crt to the server and every agent"
        steps.append((f"{again(flags, 'renew')} --ca", why))
    if any(each.role is not CertificateRole.CA for each in due):
        steps.append((again(flags, "renew"), "renew what is due"))
    created = any(each.action is CertificateAction.CREATED for each in results)
    return steps or (_start_commands(flags, results) if verb == "create" and created else [])


_DUE = (CertificateState.EXPIRING, CertificateState.EXPIRED)


def _start_commands(flags: argparse.Namespace, results: Sequence[CertificateResult]) -> list[tuple[str, str]]:
    directory = Path(flags.dir)
    agents = [each for each in results if each.stored.role is CertificateRole.AGENT]
    created = [each for each in agents if each.action is CertificateAction.CREATED]
    agent = (created or agents)[0].stored
    host = flags.server_name[0] if flags.server_name else "127.0.0.1"
    server = [
        "proxy-server --mode=http-connect --uds-name=bootbridge.sock --server-port=0",
        *_file_flags("cluster-cert", directory / "server.crt", "cluster-key", directory / "server.key"),
        *_file_flags("cluster-ca-cert", directory / "ca.crt"),
    ]
    client = [
        f"proxy-agent --proxy-server-host={shlex.quote(host)}",
        *_file_flags("ca-cert", directory / "ca.crt"),
        *_file_flags("agent-cert", agent.cert_path, "agent-key", agent.key_path),
    ]
    return [(" ".join(server), "start a server"), (" ".join(client), "start an agent")]


def _file_flags(*pairs: str | Path) -> list[str]:
    return [f"--{flag}={shlex.quote(str(path))}" for flag, path in zip(pairs[::2], pairs[1::2], strict=True)]


def again(flags: argparse.Namespace, verb: str) -> str:
    where = "" if flags.dir == DEFAULT_DIRECTORY else f" --dir {shlex.quote(flags.dir)}"
    return f"bootbridge certs {verb}{where}"
