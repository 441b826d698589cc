"""A bootstrap node with a real sshd on loopback, and the directory of openshift-install."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from bootbridge.trust.authority import Authority
from tests.support.process_program import free_port, until

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
    """An OpenShift bootstrap node: its files, and an sshd that has them at /opt, /var/log and /var/tmp."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.temporary = folder / "tmp"  # its own: tests that run at the same time collect files too
        self.temporary.mkdir()
        self.key = folder / "key"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "", "-f", str(self.key)],
            check=True,
        )
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host")], check=True
        )
        self.host_key = (folder / "host.pub").read_text().strip()
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port},[127.0.0.2]:{self.port} {self.host_key}\n")
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
        binds = {"opt": "/opt", "log": "/var/log", "tmp": "/var/tmp"}
        mounts = " && ".join(f'mount --bind "$1/{source}" {target}' for source, target in binds.items())
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
