"""`bootbridge gather --dir` on the installer's machine, with a real sshd on loopback."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bootbridge.bootstrap.diagnose.gather import remote
from bootbridge.bootstrap.diagnose.gather.install_dir import InstallDir
from bootbridge.bootstrap.diagnose.gather.remote import Login
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.cli.main import main
from bootbridge.errors import OperatorError
from bootbridge.trust.authority import Authority
from tests.bootstrap.diagnose.log_bundle import holders, unpacked
from tests.support.fake_api_server import TOKEN
from tests.support.fake_cluster import FakeCluster
from tests.support.process_program import ROOT, free_port, until

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
LACK = "" if SSHD and os.geteuid() == 0 and shutil.which("unshare") else "needs root, sshd and unshare"
# Not skipped under CI.
needs_sshd = pytest.mark.skipif(bool(LACK) and os.environ.get("CI") != "true", reason=LACK or "-")
KEY_PEM = Authority.create("a", key="rsa-2048").issue_client("b").key_pem
FAILED = [
    {"phase": "service start"},
    {"phase": "stage start", "stage": "konnectivity-server-bootstrap"},
    {
        "phase": "stage end",
        "stage": "konnectivity-server-bootstrap",
        "result": "failure",
        "errorMessage": "no image",
    },
    {"phase": "service end", "result": "failure"},
]


class Node:
    """The files of an OpenShift bootstrap node, and an sshd that has them mounted at /opt and /var/log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.key = folder / "key"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "", "-f", str(self.key)],
            check=True,
        )
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host")], check=True
        )
        self._write_files()
        self.process = self._start()

    def _write_files(self) -> None:
        state, logs = self.folder / "opt/openshift/bootbridge", self.folder / "log"
        for path, data in {
            state / "plan.json": b"{}",
            state / "tls/agent.key": KEY_PEM,
            state / "tls/agent.crt": Authority.create("c").cert_pem,
            state / "kept.txt": b"one line\n",
            state / "leaked.txt": b"a key:\n" + KEY_PEM,
            self.folder
            / "opt/openshift/manifests/bootbridge-agent-secret.yaml": b"kind: Secret\ndata:\n  tls.key: "
            + base64.b64encode(KEY_PEM)
            + b"\n",
            logs / "openshift/bootkube.json": json.dumps(FAILED).encode(),
            logs / "openshift/release-image.json": json.dumps(
                [{"phase": "service start"}, {"phase": "service end", "result": "success"}]
            ).encode(),
            # The script on the node does not recognise this key; the installer's machine does.
            logs / "pods/kube-system_konnectivity-server-n_1/s/0.log": b"key "
            + base64.b64encode(KEY_PEM)
            + b"\n",
            logs / "bootbridge/receipt.json": b'{"clean": true}',
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def _start(self) -> subprocess.Popen[bytes]:
        config = self.folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.folder}/host\nPidFile none\n"
            f"AuthorizedKeysFile {self.folder}/key.pub\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
        )
        os.makedirs("/run/sshd", exist_ok=True)
        mounts = 'mount --bind "$1/opt" /opt && mount --bind "$1/log" /var/log'
        script = f'{mounts} && exec "$2" -D -e -f "$1/sshd_config"'
        argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(self.folder), str(SSHD)]
        with (self.folder / "sshd.log").open("wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self._is_listening, f"sshd listens: {(self.folder / 'sshd.log').read_text()}")
        return process

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"))
    yield node
    node.close()


def install_dir(folder: Path, key: bytes, *addresses: tuple[str, str]) -> Path:
    """Creates a directory as openshift-install does."""
    directory = folder / "install"
    machines = directory / ".clusterapi_output"
    machines.mkdir(parents=True)
    listed = [{"type": kind, "address": address} for kind, address in addresses]
    machine = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "status": {"addresses": listed}}
    (machines / "Machine-openshift-cluster-api-guests-c-x7k2p-bootstrap.yaml").write_text(
        yaml.safe_dump(machine)
    )
    (machines / "Machine-openshift-cluster-api-guests-c-x7k2p-master-0.yaml").write_text(
        yaml.safe_dump({"status": {"addresses": [{"type": "ExternalIP", "address": "192.0.2.99"}]}})
    )
    pair = {"Priv": base64.b64encode(key).decode(), "Pub": base64.b64encode(b"ssh-rsa AAAA").decode()}
    state = {"*installconfig.InstallConfig": {"config": {}}, "*tls.BootstrapSSHKeyPair": pair}
    (directory / ".openshift_install_state.json").write_text(json.dumps(state))
    return directory


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
    code = main(["gather", *flags])
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
    assert not list(Path("/var/tmp").glob("bootbridge-gather.*"))


@needs_sshd
def test_a_rejected_ssh_key_is_reported(
    node: Node, tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ssh's message, exit code 1, and no bundle."""
    directory = install_dir(tmp_path, KEY_PEM, ("ExternalIP", "127.0.0.1"))
    assert main(["gather", "--dir", str(directory), "--user", "root", "--port", str(node.port)]) == 1
    error = capsys.readouterr().err
    assert "127.0.0.1" in error
    assert "Permission denied" in error
    assert "--key" in error
    assert not list(directory.glob("*.tar.gz"))
    assert list(temporary.iterdir()) == []


@needs_sshd
def test_flags_for_host_and_key_replace_the_installers_state(node: Node, tmp_path: Path) -> None:
    """As for a user-provisioned bootstrap node."""
    directory = tmp_path / "empty"
    directory.mkdir()
    flags = ["--bootstrap", "127.0.0.1", "--key", str(node.key), "--user", "root", "--port", str(node.port)]
    assert main(["gather", "--dir", str(directory), *flags]) == 0
    (bundle,) = directory.glob("bootbridge-log-bundle-*.tar.gz")
    assert "node/services/bootkube.json" in unpacked(bundle)


@needs_sshd
def test_an_invalid_kubeconfig_is_noted_and_the_node_is_collected(node: Node, tmp_path: Path) -> None:
    directory = install_dir(tmp_path, node.key.read_bytes(), ("ExternalIP", "127.0.0.1"))
    (directory / "auth").mkdir()
    (directory / "auth/kubeconfig").write_text("a: [")
    assert main(["gather", "--dir", str(directory), "--user", "root", "--port", str(node.port)]) == 0
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
        "StrictHostKeyChecking=accept-new",
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
