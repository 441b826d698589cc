"""One blank instance on loopback and its operator: real attested TLS and evidence, a fake kubeadm.

The pretended kubeadm makes what ours looks at: authorities, an administrator's kubeconfig, kubelet's files.
Its `init` waits until it is let go on, so that tests decide what happens meanwhile; it leaves its own
arguments behind, for those who look for secrets in them. The API server takes everything it is given.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cryptography import x509

from bootbridge.trust import init_secret
from bootbridge.trust.authority import Authority
from bootbridge.trust.identity import EvidenceKind, key_identity
from tests.support.process_program import free_port

NAME = "cp-0"
TOKEN = "token-of-the-administrator"
PAUSE_SECONDS = "0.02"

KUBEADM = r"""#!/bin/sh
# {folder} is the test's, {root} the instance's.
set -e
tr '\0' ' ' < /proc/$$/cmdline >> {folder}/kubeadm-arguments; echo >> {folder}/kubeadm-arguments
case "$*" in
version*) echo v1.36.3 ;;
"init phase preflight"*) echo "[preflight] Running pre-flight checks" ;;
"init phase certs"*)
    echo "[certs] Using certificateDir folder"
    mkdir -p {root}/etc/kubernetes/pki
    cp {folder}/cluster-ca/ca.crt {folder}/cluster-ca/ca.key {root}/etc/kubernetes/pki/ ;;
reset*) echo "[reset] Reading configuration" ;;
join*)
    echo "[kubelet-start] Starting the kubelet"
    umask 077
    mkdir -p {root}/var/lib/kubelet {root}/etc/kubernetes
    touch {root}/etc/kubernetes/kubelet.conf {root}/var/lib/kubelet/config.yaml ;;
init*)
    echo "[etcd] Creating static Pod manifest"
    touch {folder}/init-runs
    until [ -e {folder}/go-on ]; do sleep {pause}; done
    if [ -e {folder}/fail ]; then echo "error: the kubelet is not healthy" >&2; exit 1; fi
    echo "[wait-control-plane] The control plane is up"
    umask 077
    mkdir -p {root}/var/lib/kubelet {root}/etc/kubernetes
    cp {folder}/admin.conf {root}/etc/kubernetes/admin.conf
    touch {root}/etc/kubernetes/kubelet.conf {root}/var/lib/kubelet/config.yaml ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac
"""


class RecordingApiServer:
    """An API server that accepts and records every request."""

    def __init__(self) -> None:
        self.applied: dict[str, Any] = {}
        self.removed: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(b"ok")

            def do_PATCH(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                document = json.loads(body)
                api.applied[f"{document['kind']}/{document['metadata']['name']}"] = document
                self._answer(body)

            do_POST = do_PATCH

            def do_DELETE(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                api.removed.append(unquote(self.path.rpartition("/")[2]))
                self._answer(b'{"kind": "Status"}')

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def kubeconfig(self) -> bytes:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
        }
        return json.dumps(document).encode()


def by_authority(authority: Authority) -> dict[str, Any]:
    """Returns evidence settings that accept machines of this CA."""
    return {"x509": {"cas": authority.cert_pem.decode()}}


@dataclass
class LocalInstance:
    """Files of the instance are below `folder/instance`, those of the operator below `folder/user`."""

    folder: Path
    api: RecordingApiServer
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        for directory in ("instance", "user", "cluster-ca"):
            (self.folder / directory).mkdir()
        self.root = self.folder / "instance"
        self.user = self.folder / "user"
        # As kubeadm's: what it signs may last as long as it is to.
        Authority.create("kubernetes", validity=timedelta(days=3650)).write(
            self.folder / "cluster-ca", with_key=True
        )
        self.authority = Authority.create("machines")
        evidence = self.authority.issue_client(NAME)
        key = x509.load_pem_x509_certificate(evidence.cert_pem).public_key()
        self.identity = key_identity(EvidenceKind.X509, key)
        certificate, key = evidence.write(self.root, "evidence")
        self._write(self.folder / "admin.conf", self.api.kubeconfig)
        script = KUBEADM.format(folder=self.folder, root=self.root, pause=PAUSE_SECONDS)
        self._write(self.root / "kubeadm", script.encode(), 0o755)
        self.secret, self._secret_hash = init_secret.make()
        self._write(self.user / "init-secret", self.secret + b"\n")
        self.write_metadata()
        self.configuration = self.root / "node.yaml"
        self._settings: dict[str, Any] = {
            "metadata": {"static": {"file": str(self.root / "instance.json")}},
            "evidence": {"x509": {"certificate": str(certificate), "key": str(key)}},
            "register": str(self.root / "register"),
            "joinService": {"evidence": "none"},
            "init": {"host": "127.0.0.1", "port": self.port},
            "kubelet": "none",
            "kubeadm": str(self.root / "kubeadm"),
            "root": str(self.root),
            "run": str(self.root / "run" / "node"),
            "state": str(self.root / "state.json"),
            "lingerSeconds": 20,
        }
        self.configure()
        self._write_json(
            self.user / "spec.yaml",
            {"kubernetesVersion": "v1.36.3", "joinServiceImage": "example/bootbridge:1"},
        )
        self.write_policy(by_authority(self.authority))

    # --- what tests change

    def write_metadata(self, role: str = "control-plane", **changes: Any) -> None:
        own = {"name": NAME, "role": role, "addresses": ["127.0.0.1"]}
        metadata = {"self": own, "initSecretHash": self._secret_hash, **changes}
        self._write_json(self.root / "instance.json", metadata)

    def configure(self, **changes: Any) -> None:
        self._settings |= changes
        self._write_json(self.configuration, self._settings)

    def write_policy(
        self,
        evidence: Mapping[str, Any],
        identity: str = "",
        role: str = "control-plane",
        **more: Any,
    ) -> None:
        """Writes the required evidence and the identity of this instance."""
        entry = {"name": NAME, "role": role, "addresses": ["127.0.0.1"], "identity": identity}
        self._write_json(self.user / "policy.yaml", {"evidence": evidence, "instances": [entry], **more})

    def write_wrong_secret(self) -> None:
        self._write(self.user / "init-secret", b"not-the-secret\n")

    def let_kubeadm_go_on(self) -> None:
        (self.folder / "go-on").touch()

    def let_kubeadm_fail(self) -> None:
        (self.folder / "fail").touch()
        self.let_kubeadm_go_on()

    # --- what tests look at

    @property
    def init_runs(self) -> bool:
        """Whether `kubeadm init` has started."""
        return (self.folder / "init-runs").exists()

    @property
    def kubeadm_arguments(self) -> str:
        path = self.folder / "kubeadm-arguments"
        return path.read_text() if path.exists() else ""

    @property
    def kubeconfig(self) -> Path:
        return self.user / "admin.conf"

    @property
    def init_arguments(self) -> list[str]:
        """The arguments of `bootbridge` for this init."""
        flags: Mapping[str, Path] = {
            "--spec": self.user / "spec.yaml",
            "--policy": self.user / "policy.yaml",
            "--init-secret-file": self.user / "init-secret",
            "--secrets": self.user / "secrets.json",
            "--kubeconfig": self.kubeconfig,
        }
        named = [word for flag, value in flags.items() for word in (flag, str(value))]
        return ["node", "init", f"127.0.0.1:{self.port}", *named]

    def _write_json(self, path: Path, document: Mapping[str, Any]) -> None:
        self._write(path, json.dumps(document).encode())

    def _write(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        path.write_bytes(data)
        path.chmod(mode)
