"""`bootbridge gather --dir` on the installer's machine, with a real sshd on loopback."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootbridge.bootstrap.diagnose.gather import remote
from bootbridge.bootstrap.diagnose.gather.install_dir import InstallDir
from bootbridge.bootstrap.diagnose.gather.remote import Login
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.cli.main import main
from bootbridge.errors import OperatorError
from tests.bootstrap.diagnose.log_bundle import holders, unpacked
from tests.bootstrap.diagnose.ssh_node import FAILED, KEY_PEM, Node, install_dir, needs_sshd
from tests.support.fake_api_server import TOKEN
from tests.support.fake_cluster import FakeCluster
from tests.support.process_program import ROOT, free_port


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"))
    yield node
    node.close()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, in which tests check that none is left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@needs_sshd
def test_files_are_collected_from_the_node(
    node: Node, tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With address and key from the installer's directory. After a failed address, the next is tried."""
    key = node.key.read_bytes()
    directory = install_dir(tmp_path, key, ("InternalIP", "127.0.0.1"), ("ExternalIP", "127.0.0.2"))
    out = tmp_path / "bundle.tar.gz"
    flags = ["--dir", str(directory), "--user", "root", "--port", str(node.port), "--out", str(out), "--json"]
    code = main(["gather", *flags, "--known-hosts", str(node.known_hosts)])
    output = capsys.readouterr()
    assert code == 0, output.err
    assert output.err.index("127.0.0.2 over ssh") < output.err.index("127.0.0.1 over ssh")
    sentence = json.loads(output.out)["analysis"]["sentence"]
    assert "failed at stage 'konnectivity-server-bootstrap'" in sentence
    files = unpacked(out)
    assert sentence.encode() in files["analysis.txt"]
    state = "node/assets/opt/openshift/bootbridge"
    assert files[f"{state}/kept.txt"] == b"one line\n"
    assert files[f"{state}/leaked.txt"].startswith(b"withheld on the node")
    assert files["node/receipt.json"] == b'{"clean": true}'
    assert json.loads(files["node/services/bootkube.json"]) == FAILED
    assert b"127.0.0.1" in files["node/network/ip-address.txt"]
    assert b"CN" in files["node/certificates/agent.crt.txt"]
    assert files["node/logs/kube-system_konnectivity-server-n_1/s/0.log"] == b"key [redacted]\n"
    assert f"{state}/tls/agent.key" not in files
    assert holders(files, KEY_PEM) == holders(files, key) == []
    assert list(temporary.iterdir()) == []
    assert list(node.temporary.iterdir()) == []


@needs_sshd
def test_a_rejected_ssh_key_is_reported(
    node: Node, tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ssh's message, exit code 1, and no bundle."""
    directory = install_dir(tmp_path, KEY_PEM, ("ExternalIP", "127.0.0.1"))
    flags = ["--user", "root", "--port", str(node.port), "--accept-new-host-key"]
    assert main(["gather", "--dir", str(directory), *flags]) == 1
    error = capsys.readouterr().err
    assert "127.0.0.1" in error
    assert "Permission denied" in error
    assert "--key" in error
    assert not list(directory.glob("*.tar.gz"))
    assert list(temporary.iterdir()) == []


# --- the node's host key

OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIIII"


def ignition(directory: Path, *keys: str) -> None:
    """Writes a bootstrap.ign that contains these public host keys."""
    files = [{"path": "/etc/motd", "contents": {"source": "data:,hello"}}]
    for number, key in enumerate(keys):
        source = "data:;base64," + base64.b64encode(key.encode()).decode()
        files.append({"path": f"/etc/ssh/ssh_host_k{number}_key.pub", "contents": {"source": source}})
    document = {"ignition": {"version": "3.2.0"}, "storage": {"files": files}}
    (directory / "bootstrap.ign").write_text(json.dumps(document))


@needs_sshd
def test_an_unknown_host_key_is_refused(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names both flags; the node gets nothing."""
    directory = install_dir(tmp_path, node.key.read_bytes(), ("ExternalIP", "127.0.0.1"))
    assert main(["gather", "--dir", str(directory), "--user", "root", "--port", str(node.port)]) == 1
    error = capsys.readouterr().err
    assert "127.0.0.1: host key unknown" in error
    assert "--known-hosts FILE" in error
    assert "--accept-new-host-key" in error
    assert not (directory / "bootbridge-known-hosts").exists()


@needs_sshd
def test_a_host_key_is_accepted_once_and_verified_afterwards(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = install_dir(tmp_path, node.key.read_bytes(), ("ExternalIP", "127.0.0.1"))
    flags = [
        "--dir",
        str(directory),
        "--user",
        "root",
        "--port",
        str(node.port),
        "--out",
        str(tmp_path / "b"),
    ]
    assert main(["gather", *flags, "--accept-new-host-key"]) == 0
    record = directory / "bootbridge-known-hosts"
    assert node.host_key.split()[1] in record.read_text()
    assert main(["gather", *flags]) == 0
    record.write_text(f"[127.0.0.1]:{node.port} {OTHER_KEY}\n")
    capsys.readouterr()
    for more in ([], ["--accept-new-host-key"]):
        assert main(["gather", *flags, *more]) == 1
        assert "host key changed" in capsys.readouterr().err
    assert OTHER_KEY in record.read_text()


@needs_sshd
def test_the_host_key_in_bootstrap_ign_is_required(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with --accept-new-host-key, which is for an unknown key."""
    directory = install_dir(tmp_path, node.key.read_bytes(), ("ExternalIP", "127.0.0.1"))
    flags = [
        "--dir",
        str(directory),
        "--user",
        "root",
        "--port",
        str(node.port),
        "--out",
        str(tmp_path / "b"),
    ]
    ignition(directory, OTHER_KEY, node.host_key)
    assert main(["gather", *flags]) == 0
    ignition(directory, OTHER_KEY)
    for more in ([], ["--accept-new-host-key"]):
        assert main(["gather", *flags, *more]) == 1
        assert "host key changed" in capsys.readouterr().err


@needs_sshd
def test_only_the_given_file_of_host_keys_counts(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = install_dir(tmp_path, node.key.read_bytes(), ("ExternalIP", "127.0.0.1"))
    ignition(directory, node.host_key)
    known = tmp_path / "known hosts"
    known.write_text(f"[127.0.0.1]:{node.port} {OTHER_KEY}\n")
    flags = ["--user", "root", "--port", str(node.port), "--known-hosts", str(known)]
    assert main(["gather", "--dir", str(directory), *flags]) == 1
    assert "host key changed" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["no key", "ssh-ed25519 AAAA\nsecond line"])
def test_an_invalid_host_key_in_bootstrap_ign_is_named(tmp_path: Path, key: str) -> None:
    directory = install_dir(tmp_path, KEY_PEM, ("ExternalIP", "192.0.2.5"))
    ignition(directory, key)
    with pytest.raises(OperatorError, match=r"bootstrap.ign: invalid host key .*--known-hosts FILE"):
        InstallDir(directory).host_keys()


def test_a_file_of_host_keys_excludes_first_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = install_dir(tmp_path, KEY_PEM, ("ExternalIP", "192.0.2.5"))
    flags = ["--known-hosts", str(directory), "--accept-new-host-key"]
    assert main(["gather", "--dir", str(directory), *flags]) == 1
    assert "--accept-new-host-key: not allowed with --known-hosts" in capsys.readouterr().err


@needs_sshd
def test_flags_for_host_and_key_replace_the_installers_state(node: Node, tmp_path: Path) -> None:
    """As for a user-provisioned bootstrap node."""
    directory = tmp_path / "empty"
    directory.mkdir()
    flags = ["--bootstrap", "127.0.0.1", "--key", str(node.key), "--user", "root", "--port", str(node.port)]
    assert main(["gather", "--dir", str(directory), *flags, "--accept-new-host-key"]) == 0
    (bundle,) = directory.glob("bootbridge-log-bundle-*.tar.gz")
    assert "node/services/bootkube.json" in unpacked(bundle)


@needs_sshd
def test_an_invalid_kubeconfig_is_noted_and_the_node_is_collected(node: Node, tmp_path: Path) -> None:
    directory = install_dir(tmp_path, node.key.read_bytes(), ("ExternalIP", "127.0.0.1"))
    (directory / "auth").mkdir()
    (directory / "auth/kubeconfig").write_text("a: [")
    flags = ["--user", "root", "--port", str(node.port), "--accept-new-host-key"]
    assert main(["gather", "--dir", str(directory), *flags]) == 0
    (bundle,) = directory.glob("*.tar.gz")
    assert b"Not collected: cluster" in unpacked(bundle)["analysis.txt"]


def test_the_cluster_is_collected_if_the_node_is_unreachable(tmp_path: Path) -> None:
    """The exit code is 2, and the bundle contains no credentials of the kubeconfig."""
    api = FakeCluster(tmp_path)
    directory = install_dir(tmp_path, KEY_PEM, ("ExternalIP", "127.0.0.1"))
    (directory / "auth").mkdir()
    (directory / "auth/kubeconfig").write_text(json.dumps(api.kubeconfig()))
    try:
        assert main(["gather", "--dir", str(directory), "--port", str(free_port())]) == 2
    finally:
        api.close()
    (bundle,) = directory.glob("*.tar.gz")
    files = unpacked(bundle)
    assert "cluster/pods.json" in files
    assert b"The bootstrap node could not be reached" in files["analysis.txt"]
    assert b"Not collected: bootstrap node: 127.0.0.1: ssh" in files["analysis.txt"]
    assert not [name for name, data in files.items() if TOKEN.encode() in data]


@needs_sshd
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_key_and_no_bundle(tmp_path: Path, number: signal.Signals) -> None:
    """While it runs, the key file has mode 0600, and no command line contains the key."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        directory = install_dir(tmp_path, KEY_PEM, ("ExternalIP", "127.0.0.1"))
        port = silent.getsockname()[1]
        argv = [
            sys.executable,
            "-m",
            "bootbridge.cli.main",
            "gather",
            "--dir",
            str(directory),
            "--port",
            str(port),
        ]
        environment = {**os.environ, "TMPDIR": str(temporary)}
        process = subprocess.Popen(
            argv, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        silent.settimeout(20)
        connection, _ = silent.accept()  # ssh has started, so the key file exists
        with connection:
            (key,) = temporary.rglob("key")
            assert key.stat().st_mode & 0o7777 == 0o600
            lines = b"".join(map(command_line, Path("/proc").glob("[0-9]*")))
            assert not any(line in lines for line in KEY_PEM.splitlines()[1:-1])
            process.send_signal(number)
            process.communicate(timeout=20)
    assert process.returncode == 130
    assert list(temporary.iterdir()) == []
    assert not list(directory.glob("*.tar.gz"))


def command_line(process: Path) -> bytes:
    """Returns a process's command line; empty if it has ended."""
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_ssh_options(tmp_path: Path) -> None:
    """No prompts, no agent forwarding, only the given key; users other than root use sudo."""
    login = Login("core", 2222, InstallDir(install_dir(tmp_path, KEY_PEM, ("InternalIP", "a"))).ssh_key())
    argv = remote._command("192.0.2.1", login, tmp_path)
    assert {
        "BatchMode=yes",
        "ForwardAgent=no",
        "StrictHostKeyChecking=yes",
        "IdentitiesOnly=yes",
    } <= set(argv)
    assert argv[-3:] == ["--", "192.0.2.1", "sudo -n sh -s"]
    assert remote._command("h", Login("root"), tmp_path)[-1] == "sh -s"
    assert "PRIVATE" not in " ".join(argv) + repr(login)


def test_an_external_address_is_tried_first(tmp_path: Path) -> None:
    """Then the others; each once, and only those of the bootstrap node."""
    given = (
        ("Hostname", "h"),
        ("InternalIP", "10.0.0.5"),
        ("ExternalIP", "192.0.2.5"),
        ("InternalDNS", "10.0.0.5"),
    )
    directory = InstallDir(install_dir(tmp_path, KEY_PEM, *given))
    assert directory.addresses() == ["192.0.2.5", "10.0.0.5", "h"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ".openshift_install_state.json: invalid JSON"),
        (
            '{"*tls.BootstrapSSHKeyPair": {"Priv": "bm8ga2V5"}}',
            '["*tls.BootstrapSSHKeyPair"]["Priv"] is not a private key',
        ),
    ],
)
def test_an_invalid_state_file_is_named(tmp_path: Path, content: str, words: str) -> None:
    """The error suggests --key."""
    directory = install_dir(tmp_path, KEY_PEM, ("ExternalIP", "192.0.2.5"))
    (directory / ".openshift_install_state.json").write_text(content)
    with pytest.raises(OperatorError) as caught:
        InstallDir(directory).ssh_key()
    assert words in str(caught.value)
    assert "--key FILE" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", "invalid YAML"),
        ("status: {}", "required field missing: status.addresses"),
        ("[]", "required field missing: status.addresses"),
        (None, "file not found: .clusterapi_output/Machine-*-bootstrap.yaml"),
    ],
)
def test_a_machine_without_an_address_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    """The error suggests --bootstrap."""
    directory = install_dir(tmp_path, KEY_PEM)
    (machine,) = (directory / ".clusterapi_output").glob("*-bootstrap.yaml")
    if content is None:
        machine.unlink()
    else:
        machine.write_text(content)
    with pytest.raises(OperatorError) as caught:
        InstallDir(directory).addresses()
    assert words in str(caught.value)
    assert "--bootstrap HOST" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--bootstrap", "-oProxyCommand=x"), "invalid host"),
        (("--user", "a b"), "--user"),
        (("--port", "0"), "--port"),
        (("--key", "/nowhere"), "--key"),
        (("--known-hosts", "/nowhere"), "--known-hosts: file not found"),
        (("--timeout", "x"), "--timeout"),
    ],
)
def test_invalid_flags_are_named(
    tmp_path: Path, flags: tuple[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = install_dir(tmp_path, KEY_PEM, ("ExternalIP", "192.0.2.5"))
    assert main(["gather", "--dir", str(directory), f"{flags[0]}={flags[1]}"]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_shellcheck_accepts_the_nodes_script_as_posix_sh() -> None:
    checked = subprocess.run(
        ["shellcheck", "--shell=sh", "-"], input=remote.script(Plan()), capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stdout.decode()
