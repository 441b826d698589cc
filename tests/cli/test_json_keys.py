"""Every JSON document that a command, a program or a log writes has camelCase keys."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bootbridge.cli import main
from bootbridge.cli.reference.specification import specifications
from tests.support import ignition_documents
from tests.support.json_keys import other_keys
from tests.support.process_endpoints import Endpoint, echo
from tests.support.process_program import until
from tests.support.process_tunnels import dial
from tests.support.tunnel_programs import Programs

SOURCES = Path(main.__file__).parents[1]
AWS = ["--platform=aws", "--infra-id=demo-7xk2p"]
NODE = ["--root", "{folder}/root"]
# Command → its words, and its exit code. {folder} has an empty node, an ignition file and two configurations.
COMMANDS = {
    "version": ([], 0),
    "address": (["--node-ip=192.0.2.5"], 0),
    "certs create": (["--dir={folder}/certs"], 0),
    "certs show": (["--dir={folder}/shown"], 0),
    "certs renew": (["--dir={folder}/shown"], 0),
    "render": (["--output={folder}/rendered"], 0),
    "inject": (["{folder}/bootstrap.ign"], 0),
    "check": (["--live", *NODE], 2),
    "up": ([*NODE, "--dry-run", "--image=registry.example/b:1", "--node-ip=192.0.2.5"], 0),
    "down": (NODE, 0),
    "status": (NODE, 2),
    "doctor": (NODE, 2),
    "gather": ([*NODE, "--out={folder}/bundle.tar.gz"], 0),
    "firewall create": (AWS, 0),
    "firewall remove": (AWS, 0),
    "firewall show": (["--platform=baremetal"], 0),
    "node secret": (["--out={folder}/init-secret"], 0),
    "kasconfig": (["{folder}/a.yaml", "{folder}/b.yaml", "--diff"], 0),
}
# These need processes; the first three are in tests below, demo in its own. What the others print is built
# from literals, which `test_no_document_is_declared_with_other_keys` finds.
ELSEWHERE = {
    *("top", "forward", "demo"),
    *("image build", "lab status", "node enrol", "node evict", "node init", "node status"),
}
# Modules with such keys that are not ours: flags and queries, and formats of other programs.
NOT_DOCUMENTS = {
    "bootstrap/firewall/ibm_vpc.py": "API of IBM Cloud",
    "bootstrap/firewall/openstack.py": "API of OpenStack",
    "bootstrap/firewall/powervs.py": "API of PowerVS",
    "bootstrap/plan/cloud.py": "names of our fields, by those of install-config",
    "cli/plan_flags.py": "names of fields",
    "common/documents.py": "kinds of pydantic's errors",
    "image/oci.py": "OCI image specification",
    "ports/throttled_log.py": "a field of the log, which its formatter renames",
    "proxy_server/audit_trail.py": "pydantic's configuration",
    "status_page/view.py": "query of a URL",
    "top/fetch.py": "query of a URL",
    "top/status_document.py": "label values of a metric",
}


def test_every_command_with_json_is_in_the_list() -> None:
    found = {
        name.removeprefix("bootbridge ")
        for name, command in specifications(main.COMMAND).items()
        if any("--json" in flag.names for flag in command.flags)
    }
    assert found - {"certs", "firewall"} == {*COMMANDS, *ELSEWHERE}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_camel_case_only(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "bootstrap.ign").write_text(json.dumps(ignition_documents.document()))
    (tmp_path / "a.yaml").write_text("apiServerArguments: {v: ['2']}\n")
    (tmp_path / "b.yaml").write_text("apiServerArguments: {v: ['4']}\n")
    if command.startswith("certs"):
        assert main.main(["certs", "create", f"--dir={tmp_path}/shown"]) == 0
        capsys.readouterr()
    words, code = COMMANDS[command]
    argv = [*command.split(), *(word.format(folder=tmp_path) for word in words), "--json"]
    assert main.main(argv) == code
    document = json.loads(capsys.readouterr().out)
    assert document
    assert list(other_keys(document)) == []


def test_status_audit_trail_and_log_have_camel_case_only(
    programs: Programs, endpoint: Callable[..., Endpoint], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    audit = tmp_path / "audit.jsonl"
    server, agent = programs.pair(
        server_flags={"audit-log": audit, "log-format": "json"}, agent_flags={"log-format": "json"}
    )
    tunnel = dial(server, endpoint(echo).address)
    tunnel.send(b"x")
    assert tunnel.recv() == b"x"
    for program in (server, agent):
        status = program.admin.status()
        assert status["connections"]
        assert list(other_keys(status)) == []
    assert main.main(["top", "--json", "--interval=100ms", str(server.admin.port)]) == 0
    assert list(other_keys(json.loads(capsys.readouterr().out))) == []
    tunnel.close()
    until(lambda: audit.exists() and audit.read_text().endswith("\n"), "an audit line")
    assert list(other_keys(json.loads(audit.read_text()))) == []
    for program in (server, agent):
        lines = [json.loads(line) for line in program.log.splitlines() if line.startswith("{")]
        assert lines
        assert list(other_keys(lines)) == []


def test_no_document_is_declared_with_other_keys() -> None:
    """Also not where no test runs the command: every literal in the sources is looked at."""
    found = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and _is_snake_case(key.value)
    }
    assert found == set(NOT_DOCUMENTS)


def _is_snake_case(text: str) -> bool:
    return "_" in text and text.islower() and text.replace("_", "").isalnum()
