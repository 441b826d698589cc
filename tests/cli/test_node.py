"""``bootbridge node``: help, exit codes, and one line per error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from bootbridge.cli import main
from bootbridge.cli import node as cli
from bootbridge.errors import OperatorError
from bootbridge.node.lock.bootstrap_record import BOOT_ID, BootstrapRecord, Flow, Phase
from bootbridge.trust import init_secret
from bootbridge.trust.authority import Authority
from bootbridge.trust.evidence.x509 import X509Issuer
from bootbridge.trust.measurement import lock_value

ACTIONS = ("run", "init", "secret", "enrol", "status")


@pytest.mark.parametrize("action", ACTIONS)
def test_every_command_has_help(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["node", action, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"bootbridge node {action}" in text
    assert "Examples:" in text


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["node", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {action} " in text for action in ACTIONS)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "command missing (commands: run, init, secret, enrol, renew, evict, status)"),
        (["join"], "unknown command 'join'"),
        (["init"], "the following arguments are required"),
        (["run", "--config", "/none/node.yaml"], "--config: cannot read /none/node.yaml"),
        (["secret", "--out", "/none/secret"], "cannot write /none/secret"),
    ],
)
def test_an_error_is_reported_in_one_line(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["node", *words]) == 1
    text = capsys.readouterr().err
    assert error in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("10.0.0.5", ("10.0.0.5", 9000)),
        ("lb.example:443", ("lb.example", 443)),
        ("fd00::5", ("fd00::5", 9000)),
        ("[fd00::5]", ("fd00::5", 9000)),
        ("[fd00::5]:443", ("fd00::5", 443)),
    ],
)
def test_the_port_of_an_endpoint_is_optional(text: str, endpoint: tuple[str, int]) -> None:
    assert cli._endpoint(text) == endpoint


@pytest.mark.parametrize("text", ["", ":9000", "host:0", "host:99999"])
def test_an_invalid_endpoint_is_rejected(text: str) -> None:
    with pytest.raises(OperatorError, match="invalid address"):
        cli._endpoint(text)


# --- secret


def test_the_secret_is_written_to_a_file_and_its_hash_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "init-secret"
    assert main.main(["node", "secret", "--out", str(path)]) == 0
    shown = capsys.readouterr()
    secret = path.read_bytes().strip()
    assert path.stat().st_mode & 0o777 == 0o600
    assert init_secret.matches(secret, shown.out.strip())
    assert secret.decode() not in shown.out + shown.err


def test_a_secret_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "init-secret"
    path.write_text("another")
    assert main.main(["node", "secret", "--out", str(path)]) == 1
    assert "file exists" in capsys.readouterr().err
    assert path.read_text() == "another"


def test_json_output_contains_the_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    assert main.main(["node", "secret", "--out", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["secretFile"] == str(path)
    assert init_secret.matches(path.read_bytes().strip(), document["initSecretHash"])


# --- status


class Machine:
    """An instance's files below a directory."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.run.mkdir()
        self.register = folder / "register"
        self.state = folder / "state.json"
        token = folder / "token"
        token.write_text("dev.0123456789abcdef0123456789abcdef")
        token.chmod(0o600)
        self.configuration = folder / "node.yaml"
        self.configuration.write_text(
            json.dumps(
                {
                    "metadata": {"static": {"file": str(folder / "instance.yaml")}},
                    "evidence": {"token": {"file": str(token)}},
                    "joinService": {"evidence": "none"},
                    "register": str(self.register),
                    "run": str(self.run),
                    "state": str(self.state),
                }
            )
        )

    def record(self, phase: Phase, **more: str) -> None:
        record = BootstrapRecord(phase, Flow.INIT, CLUSTER, b"work-secret", **more)  # type: ignore[arg-type]
        (self.run / "bootstrap-record.json").write_bytes(record.dump(BOOT_ID.read_text().strip()))

    def status(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
        code = main.main(["node", "status", "--json", "--config", str(self.configuration)])
        return code, json.loads(capsys.readouterr().out)


CLUSTER = bytes(range(32))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_blank_instance_waits(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    code, seen = machine.status(capsys)
    assert (code, seen["phase"], seen["lock"], seen["node"]) == (0, "waiting", "free", None)
    assert seen["register"] == "00" * 32


def test_a_running_flow_is_shown_with_its_phase(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.register.write_bytes(lock_value(CLUSTER))
    machine.record(Phase.KUBEADM)
    code, seen = machine.status(capsys)
    assert (code, seen["phase"], seen["lock"], seen["clusterID"]) == (0, "kubeadm", "init", CLUSTER.hex())
    assert "work-secret" not in json.dumps(seen)


def test_a_failed_instance_is_shown_with_its_advice(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.register.write_bytes(lock_value(CLUSTER))
    machine.record(Phase.FAILED, reason="kubeadm broke", advice="reboot it")
    code, seen = machine.status(capsys)
    assert (code, seen["reason"], seen["advice"]) == (2, "kubeadm broke", "reboot it")
    assert main.main(["node", "status", "--config", str(machine.configuration)]) == 2
    assert "what to do  reboot it\n" in capsys.readouterr().out


def test_a_register_that_contradicts_the_record_is_not_healthy(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.register.write_bytes(lock_value(b"another"))
    assert machine.status(capsys)[0] == 2
    machine.record(Phase.LOCKED)
    assert machine.status(capsys)[0] == 2


def test_a_record_of_an_earlier_boot_is_ignored(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.record(Phase.KUBEADM)
    text = (
        (machine.run / "bootstrap-record.json")
        .read_text()
        .replace(BOOT_ID.read_text().strip(), "another-boot")
    )
    (machine.run / "bootstrap-record.json").write_text(text)
    code, seen = machine.status(capsys)
    assert (code, seen["phase"], seen["clusterID"]) == (0, "waiting", "")


def test_a_rebooted_node_is_distinguished_from_an_unknown_measurement(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"role": "worker", "name": "worker-0", "clusterID": CLUSTER.hex()}
    machine.state.write_text(json.dumps(state))
    code, seen = machine.status(capsys)
    assert (code, seen["lock"], seen["node"]) == (0, "free", {"name": "worker-0", "role": "worker"})
    machine.register.write_bytes(lock_value(CLUSTER))
    code, seen = machine.status(capsys)
    assert (code, seen["lock"]) == (0, "this node")


def test_an_unreadable_register_is_reported(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.register.write_bytes(b"half")
    code, seen = machine.status(capsys)
    assert (code, seen["lock"], seen["register"]) == (2, "unknown", "")
    assert "4 bytes, expected 32" in str(seen["registerError"])


# --- enrol


def test_enrol_prints_the_policy_entry(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = Authority.create("machines").issue_client("worker-0").write(tmp_path, "evidence")
    document = json.loads(machine.configuration.read_text())
    document["evidence"] = {"x509": {"certificate": str(certificate), "key": str(key)}}
    machine.configuration.write_text(json.dumps(document))
    own = {"name": "worker-0", "role": "worker", "addresses": ["10.0.0.5"]}
    (tmp_path / "instance.yaml").write_text(json.dumps({"self": own}))
    assert main.main(["node", "enrol", "--config", str(machine.configuration)]) == 0
    (entry,) = yaml.safe_load(capsys.readouterr().out)
    identity = X509Issuer.from_pem(certificate.read_bytes(), key.read_bytes()).identity
    assert entry == {**own, "identity": identity}


def test_enrol_fails_without_metadata(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["node", "enrol", "--config", str(machine.configuration)]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_renew_fails_on_an_instance_that_is_not_a_node(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["node", "renew", "--config", str(machine.configuration)]) == 1
    assert f"{machine.state}: this instance is not a node" in capsys.readouterr().err
