"""The units of deploy/systemd, started by a real systemd, with their sandboxes and as their users."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bootbridge.cli.node import CONFIGURATION
from bootbridge.join_api.instance import Role
from bootbridge.node.init.messages import INIT_PORT
from bootbridge.node.lock.node_state import STATE, FileNodeStateStore, NodeState
from bootbridge.node.node_paths import SERVING
from bootbridge.trust import init_secret
from bootbridge.trust.certificate_directory import CertificateDirectory, CertificateRequest
from tests.support.not_run import not_run
from tests.support.process_program import until
from tests.support.systemd import PREFIX, UNITS, RunningSystemd, missing, running_systemd

# One systemd for all of them.
pytestmark = pytest.mark.xdist_group("systemd")

SERVER, AGENT, NODE = (f"bootbridge-{name}.service" for name in ("server", "agent", "node"))
RENEW, TIMER = "bootbridge-node-renew.service", "bootbridge-node-renew.timer"
SOCKET = "/run/bootbridge-server/server.sock"
AUDIT_LOG = "/var/log/bootbridge-server/audit.jsonl"
# The agent's own health port, as a destination.
DESTINATION = "127.0.0.1:8093"
NODE_YAML = b"""\
metadata: {static: {file: /etc/bootbridge/instance.yaml}}
evidence: {x509: {certificate: /etc/bootbridge/server/server.crt, key: /etc/bootbridge/server/server.key}}
register: /run/bootbridge-node/register
joinService: {evidence: none}
"""
REQUEST = b"GET /healthz HTTP/1.0\r\n\r\n"


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystemd]:
    """A systemd with our units, users, certificates and the examples of the environment files."""
    if lack := missing():
        not_run(lack)
    folder = tmp_path_factory.mktemp("systemd")
    certificates = folder / "certs"
    CertificateDirectory(certificates).create(
        [
            CertificateRequest("server", "proxy-server", ("127.0.0.1",)),
            CertificateRequest("agent", "proxy-agent"),
        ]
    )
    with running_systemd(folder) as systemd:
        systemd.run("systemd-sysusers", str(UNITS / "bootbridge.sysusers"))
        for program in ("server", "agent"):
            for name, mode in (("ca.crt", "0644"), (f"{program}.crt", "0644"), (f"{program}.key", "0400")):
                owner = f"bootbridge-{program}" if name.endswith(".key") else "root"
                data = (certificates / name).read_bytes()
                systemd.write(f"/etc/bootbridge/{program}/{name}", data, mode, owner)
        server = (UNITS / "server.env").read_text()
        assert f"#   --audit-log={AUDIT_LOG}" in server
        server = server.replace("--mode=", f"--audit-log={AUDIT_LOG} --mode=", 1)
        systemd.write("/etc/bootbridge/server.env", server.encode())
        agent = (UNITS / "agent.env").read_text().replace("192.0.2.10", "127.0.0.1", 1)
        allowed = f"--health-server-host=127.0.0.1 --allow-destinations={DESTINATION.replace(':', '/32:')}"
        changed = agent.replace("--health-server-host=127.0.0.1", allowed)
        assert agent != changed
        systemd.write("/etc/bootbridge/agent.env", changed.encode())
        systemd.write(CONFIGURATION, NODE_YAML)
        yield systemd


@pytest.fixture(scope="module")
def tunnel(systemd: RunningSystemd) -> RunningSystemd:
    systemd.systemctl("enable", "--now", SERVER, AGENT)
    return systemd


def wait_for_tunnel(systemd: RunningSystemd) -> None:
    """Waits until the agent's health port answers through the tunnel."""
    dial = [f"{PREFIX}/bin/bootbridge", "dial", f"--socket={SOCKET}", DESTINATION]

    def answered() -> bool:
        done = systemd.machine.run(dial, input=REQUEST)
        return done.stdout.endswith(b"ok")

    try:
        until(answered, "the destination answers through the tunnel", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{systemd.log}") from None


def test_a_call_goes_through_the_tunnel(tunnel: RunningSystemd) -> None:
    """The socket, the keys, TLS, the dial and the audit log work inside of both sandboxes."""
    wait_for_tunnel(tunnel)
    until(lambda: DESTINATION in tunnel.run("cat", AUDIT_LOG), "the call is in the audit log")


@pytest.mark.parametrize("unit", [SERVER, AGENT])
def test_the_proxies_have_no_privileges(tunnel: RunningSystemd, unit: str) -> None:
    user = tunnel.run("id", "--user", unit.removesuffix(".service")).strip()
    status = tunnel.process_status(unit)
    assert set(status["Uid"].split()) == {user} != {"0"}
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_a_killed_server_is_restarted_with_the_same_directory(tunnel: RunningSystemd) -> None:
    """A kube-apiserver's pod has mounted the directory: a new one would be another."""
    wait_for_tunnel(tunnel)
    before = tunnel.value(SERVER, "MainPID"), tunnel.run("stat", "--format=%i", "/run/bootbridge-server")
    tunnel.systemctl("kill", "--signal=KILL", SERVER)
    until(lambda: tunnel.value(SERVER, "MainPID") not in ("0", before[0]), "the server is restarted", 60)
    wait_for_tunnel(tunnel)
    assert tunnel.run("stat", "--format=%i", "/run/bootbridge-server") == before[1]


@pytest.mark.parametrize("unit", [AGENT, SERVER])
def test_a_stop_is_a_success(tunnel: RunningSystemd, unit: str) -> None:
    """They end by themselves, within the time that the unit allows."""
    tunnel.systemctl("start", SERVER, AGENT)
    wait_for_tunnel(tunnel)
    tunnel.systemctl("stop", unit)
    assert tunnel.value(unit, "Result") == "success"
    assert tunnel.value(unit, "ExecMainCode") == "1", "ended by a signal"
    assert tunnel.value(unit, "ExecMainStatus") == "0"


def test_the_node_bootstrapper_waits_for_an_init(systemd: RunningSystemd) -> None:
    """It listens, writes its run directory, and a stop before the lock is taken is a success."""
    _, hashed = init_secret.make()
    instance = (
        f"self: {{name: node1, role: control-plane, addresses: [127.0.0.1]}}\ninitSecretHash: {hashed}\n"
    )
    systemd.write("/etc/bootbridge/instance.yaml", instance.encode())
    systemd.systemctl("enable", "--now", NODE)
    listening = ["ss", "--listening", "--tcp", "--no-header", "sport", "=", f":{INIT_PORT}"]
    try:
        until(lambda: systemd.machine.run(listening).stdout, "the bootstrapper listens", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{systemd.log}") from None
    assert systemd.process_status(NODE)["NoNewPrivs"] == "1"
    systemd.systemctl("stop", NODE)
    assert (systemd.value(NODE, "Result"), systemd.value(NODE, "ExecMainStatus")) == ("success", "130")


def test_renewal_waits_until_the_instance_is_a_node(systemd: RunningSystemd) -> None:
    """The timer starts it; before there is a certificate, systemd does not run it."""
    assert systemd.machine.run(["test", "-e", str(STATE)]).returncode == 1
    systemd.systemctl("enable", "--now", TIMER)
    assert systemd.value(TIMER, "ActiveState") == "active"
    assert systemd.value(TIMER, "NextElapseUSecRealtime")
    systemd.systemctl("start", RENEW)
    assert systemd.value(RENEW, "ConditionTimestamp")
    assert systemd.value(RENEW, "ConditionResult") == "no"


def test_a_certificate_that_is_not_due_is_left_alone(systemd: RunningSystemd, tmp_path: Path) -> None:
    """State, run directory, configuration and key are accessible in the sandbox of the renewal."""
    own = tmp_path / "state.json"
    FileNodeStateStore(own).save(NodeState(Role.WORKER, "node1", b"\xaa" * 32))
    systemd.write(str(STATE), own.read_bytes(), "0600")
    pair = systemd.run("cat", "/etc/bootbridge/server/server.crt", "/etc/bootbridge/server/server.key")
    systemd.write(SERVING, pair.encode(), "0600")
    # As on an instance. Without it systemd unloads the service at its end, and its results with it.
    systemd.systemctl("start", TIMER)
    systemd.systemctl("start", RENEW)
    assert systemd.value(RENEW, "ConditionResult") == "yes", systemd.log
    assert systemd.value(RENEW, "Result") == "success", systemd.log
    assert systemd.value(RENEW, "ExecMainStartTimestamp")
    assert systemd.run("cat", SERVING) == pair
