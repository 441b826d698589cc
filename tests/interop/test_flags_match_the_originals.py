"""Our flags beside those of the real Go programs: names, kinds, defaults and refusals."""

from __future__ import annotations

import re
import subprocess

import pytest

from bootbridge.cli import agent, server
from bootbridge.cli.agent_flags import FLAGS as AGENT_FLAGS
from bootbridge.cli.pflags import FlagSet
from bootbridge.cli.server_flags import FLAGS as SERVER_FLAGS
from tests.support.help_pages import KLOG_KINDS, Shown, flags_of_the_original, original

pytestmark = pytest.mark.interop

PROGRAMS = {"proxy-server": SERVER_FLAGS, "proxy-agent": AGENT_FLAGS}
COMMANDS = {"proxy-server": server.main, "proxy-agent": agent.main}

# We take several hosts where the original takes one; a single one reads the same.
# Newer originals check the agent's selector while reading flags, as we do.
WIDER_KINDS = {
    "proxy-server": {},
    "proxy-agent": {"proxy-server-host": ("string", "strings"), "lease-label": ("string", "selector")},
}
OURS_ALONE = {
    "proxy-server": {
        "insecure-agents",
        "direct-cidrs",
        "agent-identifier-proof",
        "agent-proof-kubeconfig",
        "agent-cidrs",
        "agent-hosts",
        "agent-default-route",
        "agent-max-age",
        "audit-log",
        "first-agent-timeout",
        "node-cidr-mask-size-ipv4",
        "node-cidr-mask-size-ipv6",
        "allow-destinations",
        "agent-token-issuer",
        "deny-destinations",
        "stall-timeout",
        "log-format",
        "frontend-write-channel-size",
        "warn-on-channel-limit",  # deprecated, so the original's help hides it
    },
    "proxy-agent": {
        "allow-destinations",
        "deny-destinations",
        "drain-timeout",
        "stall-timeout",
        "log-format",
        "lease-label-selector",
    },
}
RANDOM_DEFAULTS = {"server-id", "agent-id"}


def our_flags(flags: FlagSet) -> dict[str, Shown]:
    return {flag.name: _as_shown(flag.name, flags) for flag in flags}


def _as_shown(name: str, flags: FlagSet) -> Shown:
    flag = next(flag for flag in flags if flag.name == name)
    kind, default = flags.kind(flag), flags.default(flag)
    text = "" if default in ("", (), False, 0, None) else kind.show(default)
    return Shown(name, kind.word, text.strip('"[]'))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_flag_of_the_original_is_ours_too(program):
    """And we add none but those listed here."""
    theirs, ours = flags_of_the_original(program), our_flags(PROGRAMS[program])
    assert set(theirs) - {"help"} - set(ours) == set()
    assert set(ours) - set(theirs) == OURS_ALONE[program]


@pytest.mark.parametrize("program", PROGRAMS)
def test_kinds_and_defaults_are_the_originals(program):
    """A manifest that leaves a flag out means the same to both."""
    theirs, ours = flags_of_the_original(program), our_flags(PROGRAMS[program])
    for name in set(theirs) & set(ours):
        their_kind = KLOG_KINDS.get(theirs[name].kind, theirs[name].kind)
        assert (their_kind, ours[name].kind) == WIDER_KINDS[program].get(name, (their_kind,) * 2), name
        # log-backtrace-at shows its unset value as ":0".
        if name not in RANDOM_DEFAULTS:
            assert ours[name].default == theirs[name].default.replace(":0", ""), name


UDS = ["--uds-name=/tmp/x.sock", "--server-port=0"]

REFUSED_BY_THE_SERVER = [
    [],
    ["--foo"],
    ["--log_file=x"],
    ["-x"],
    ["-mode=grpc"],
    ["--mode"],
    ["-v"],
    ["-v=x"],
    ["-v="],
    ["--=x"],
    ["---mode"],
    ["--agent-port=x"],
    ["--agent-port=08"],
    ["--agent-port=99999999999999999999"],
    ["--kubeconfig-qps=x"],
    ["--kubeconfig-qps=1e40"],
    ["--enable-profiling=yes"],
    ["--logtostderr=yes"],
    ["--log-file-max-size=-1"],
    ["--stderrthreshold=LOUD"],
    ["--keepalive-time=5"],
    ["--keepalive-time=5 s"],
    ["--keepalive-time="],
    ["--keepalive-time=3000000h"],
    ["--server-key=/nosuch"],
    ["--server-cert=/nosuch"],
    ["--server-ca-cert=/nosuch"],
    ["--cluster-key=/nosuch"],
    ["--cluster-cert=/nosuch"],
    ["--cluster-ca-cert=/nosuch"],
    ["--cluster-key=/dev/null"],
    ["--cluster-cert=/dev/null"],
    ["--server-key=/dev/null"],
    ["--server-cert=/dev/null"],
    ["--mode=tcp"],
    ["--uds-name=/tmp/x.sock"],
    [*UDS, "--server-ca-cert=/dev/null"],
    [*UDS, "--server-cert=/dev/null", "--server-key=/dev/null"],
    [*UDS, "--agent-port=1023"],
    [*UDS, "--agent-port=49152"],
    [*UDS, "--health-port=49152", "--agent-port=1"],
    [*UDS, "--admin-port=0x10"],
    ["--server-ca-cert=/dev/null", "--server-port=1023"],
    [*UDS, "--enable-contention-profiling"],
    [*UDS, "--agent-namespace=a", "--cluster-ca-cert=/dev/null"],
    [*UDS, "--agent-namespace=a"],
    [*UDS, "--agent-service-account=a"],
    [*UDS, "--agent-namespace=a", "--agent-service-account=a"],
    [*UDS, "--kubeconfig=/nosuch"],
    [*UDS, "--proxy-strategies="],
    [*UDS, "--proxy-strategies=,"],
    [*UDS, "--proxy-strategies=default,nosuch"],
    [*UDS, "--xfr-channel-size=0"],
    [*UDS, "--xfr-channel-size=-10"],
    [*UDS, "--tls-min-version=TLS13"],
    [*UDS, "--cipher-suites=TLS_AES_128_GCM_SHA256,NOSUCH"],
    [*UDS, "--enable-lease-controller", "--lease-label="],
    [*UDS, "--enable-lease-controller", "--lease-label=a=b,c"],
    [*UDS, "--graceful-shutdown-timeout=-1s"],
    [*UDS, "--graceful-shutdown-timeout=-90m"],
    [*UDS, "--backend-dial-timeout=-1500us"],
]

REFUSED_BY_THE_AGENT = [
    ["--foo=bar"],
    ["--agent-key=/nosuch"],
    ["--agent-cert=/nosuch"],
    ["--agent-key=/dev/null"],
    ["--agent-cert=/dev/null"],
    ["--ca-cert=/nosuch"],
    ["--proxy-server-port=0"],
    ["--health-server-port=-1"],
    ["--admin-server-port=0"],
    ["--xfr-channel-size=0"],
    ["--enable-contention-profiling"],
    ["--sync-interval=1h"],
    ["--sync-interval=1m1.5s", "--sync-interval-cap=1ms"],
    ["--service-account-token-path=/nosuch"],
    ["--agent-identifiers=zone=a"],
    ["--agent-identifiers=host=a;ipv4=b"],
    ["--agent-identifiers=host=%zz"],
    ["--agent-identifiers=%7a=1"],
    ["--kubeconfig=/nosuch"],
    ["--server-count-source=foobar"],
]


def refusal_of_the_original(program: str, argv: list[str]) -> str:
    """The reason alone: which step of the program found it is of no use to the operator."""
    done = subprocess.run([original(program), *argv], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    line = next(line for line in done.stderr.splitlines() if line.startswith("Error: "))
    return re.sub(r"^Error: (failed to validate \w+ options with )?", "", line)


def _name(case: str | list[str]) -> str:
    return case if isinstance(case, str) else " ".join(case)


def _cases() -> list[tuple[str, list[str]]]:
    server_cases = [("proxy-server", argv) for argv in REFUSED_BY_THE_SERVER]
    return server_cases + [("proxy-agent", argv) for argv in REFUSED_BY_THE_AGENT]


@pytest.mark.parametrize(("program", "argv"), _cases(), ids=_name)
def test_we_refuse_what_the_original_refuses_in_its_words(capsys, program, argv):
    """Same exit code; our line holds its text and may add the flag and the fix around it."""
    theirs = refusal_of_the_original(program, argv)
    assert COMMANDS[program](argv) == 1
    assert theirs in capsys.readouterr().err.splitlines()[0]
