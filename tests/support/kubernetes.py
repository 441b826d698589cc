"""A real kube-apiserver and its etcd for tests: own ports, own certificates, own folder, gone afterwards.

A test module takes it up with `pytest_plugins = ["tests.support.kubernetes"]` and marks its tests
`kubernetes`; the fixture of the same name is a control plane that all of them share.
(PYTEST_DONT_REWRITE: they import from here before they name it a plugin, which is too late for that.)
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from bootbridge.demo.interrupts import Interrupts
from bootbridge.demo.network import NetworkContext
from bootbridge.demo.processes import DemoProcess, DemoProcesses
from bootbridge.trust.authority import Authority
from tests.support.process_program import ROOT, Flags, flag_arguments, free_port

BIN = ROOT / os.environ.get("BOOTBRIDGE_KUBERNETES", "build/kubernetes") / "bin"
NEEDED = ("kube-apiserver", "kube-controller-manager", "kubeadm")
HOST = "127.0.0.1"
SERVICE_NETWORK = "172.30.0.0/16,fd00:172:30::/112"
ISSUER = "https://kubernetes.default.svc"
# Generous: on a busy machine a start takes long, and a broken one ends by itself and is noticed at once.
START_SECONDS = 90.0
CALL_SECONDS = 40.0

Json = dict[str, Any]


def missing() -> str:
    """What this machine lacks for the tests marked `kubernetes`, in words; empty when nothing does."""
    etcd = [] if shutil.which("etcd") else ["etcd"]
    lacking = etcd + [name for name in NEEDED if not (BIN / name).exists()]
    return f"missing {', '.join(lacking)}: make kubernetes" if lacking else ""


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One kube-apiserver on loopback for all tests of a run: keep to a namespace of your own in it."""
    with ControlPlane(tmp_path_factory.mktemp("kubernetes")) as control_plane:
        control_plane.start()
        yield control_plane


class ControlPlane:
    """etcd and kube-apiserver, and if asked for a kube-controller-manager, in one place.

    `start(**flags)` may be called again after `stop_apiserver()`: the state stays in etcd.
    """

    def __init__(self, folder: Path, place: NetworkContext | None = None) -> None:
        self.folder = folder
        self.place = place or NetworkContext("this machine")
        self.port = free_port()
        self.url = f"https://{HOST}:{self.port}"
        self.authority = Authority.create("kubernetes")
        self._programs = DemoProcesses(folder, Interrupts())
        self._etcd_port, self._etcd_peer_port = free_port(), free_port()
        self._etcd: DemoProcess | None = None
        self._apiserver: DemoProcess | None = None
        self._write_certificates()
        self.kubeconfig = self.kubeconfig_for("admin", "system:masters")
        self.api = Api(self, "admin")

    def __enter__(self) -> ControlPlane:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- programs

    def start(self, **flags: object) -> None:
        """Start kube-apiserver, and etcd before it, and wait until it is ready; `_` in a flag is `-`."""
        if self._etcd is None:
            argv = ["etcd", *flag_arguments(self._etcd_flags())]
            self._etcd = self._programs.start("etcd", self.place, argv)
        more = {name.replace("_", "-"): value for name, value in flags.items()}
        self._apiserver = self._launch("kube-apiserver", self._apiserver_flags() | more)
        self.until(lambda: self.api.answers("/readyz"), "kube-apiserver is ready", START_SECONDS)

    def stop_apiserver(self) -> None:
        assert self._apiserver is not None, "kube-apiserver was not started"
        self._apiserver.kill()
        self._apiserver = None

    def start_controller_manager(self, controllers: str = "*") -> None:
        """Namespaces end, service accounts and DaemonSets' pods appear: what only controllers do."""
        kubeconfig = self.kubeconfig_for("system:kube-controller-manager")
        flags = {
            "kubeconfig": kubeconfig,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "controllers": controllers,
            "use-service-account-credentials": True,
            "service-account-private-key-file": self._path("service-accounts.key"),
            "root-ca-file": self._path("ca.crt"),
            "leader-elect": False,
            "bind-address": HOST,
            "secure-port": free_port(),
            "concurrent-namespace-syncs": 10,
        }
        self._launch("kube-controller-manager", flags)

    def until(self, condition: Callable[[], object], what: str, seconds: float = CALL_SECONDS) -> None:
        """Wait for a condition; no end in sight, or a program that ended instead, fails with last words."""
        deadline = time.monotonic() + seconds
        while not condition():
            watched = [program for program in (self._etcd, self._apiserver) if program]
            ended = [program for program in watched if program.exit_code is not None]
            if ended or time.monotonic() > deadline:
                words = "\n".join(
                    f"{one.name}: {word}" for one in ended or watched for word in one.log_tail(15)
                )
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{words}")
            time.sleep(0.05)

    def log(self, name: str = "kube-apiserver") -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def close(self) -> None:
        """Their state is thrown away, so nothing is lost by asking them not first."""
        for program in reversed(self._programs.running()):
            program.kill()

    # --- access

    def kubeconfig_for(self, user: str, *groups: str) -> Path:
        """A kubeconfig (0600) with a client certificate of this user, who is in these groups."""
        certificate = self.authority.issue_client(user, organisations=groups)
        certificate.write(self.folder, user)
        return self._write_kubeconfig(
            user,
            {
                "client-certificate-data": _base64(certificate.cert_pem),
                "client-key-data": _base64(certificate.key_pem),
            },
        )

    def kubeconfig_with_token(self, name: str, token: str) -> Path:
        return self._write_kubeconfig(name, {"token": token})

    def kubectl(self, *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
        """As admin, in the place of the control plane."""
        argv = [str(BIN / "kubectl"), f"--kubeconfig={self.kubeconfig}", *words]
        return subprocess.run(
            self.place.command(argv), input=input, capture_output=True, text=True, timeout=60, check=False
        )

    def token(self, namespace: str, service_account: str, audience: str = "", seconds: int = 600) -> str:
        """A service account's token, by TokenRequest."""
        spec: Json = {"expirationSeconds": seconds}
        if audience:
            spec["audiences"] = [audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        return str(self.api.create(path, body)["status"]["token"])

    def namespace(self, name: str) -> str:
        """Make a namespace with the service account that pods in it need."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.service_account(name, "default")
        return name

    def service_account(self, namespace: str, name: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        status, answer = self.api.call("POST", path, {"metadata": {"name": name}})
        # 409: a controller manager was faster.
        assert status in (201, 409), answer

    # --- how it is made

    def _path(self, name: str) -> str:
        return str(self.folder / name)

    def _launch(self, name: str, flags: Flags) -> DemoProcess:
        return self._programs.start(name, self.place, [str(BIN / name), *flag_arguments(flags)])

    def _write_certificates(self) -> None:
        front_proxy = Authority.create("front-proxy")
        self.authority.write(self.folder, "ca")
        front_proxy.write(self.folder, "front-proxy-ca")
        front_proxy.issue_client("front-proxy").write(self.folder, "front-proxy")
        names = [HOST, "::1", "localhost", "kubernetes", "kubernetes.default.svc", "172.30.0.1"]
        self.authority.issue_server(names, common_name="kube-apiserver").write(self.folder, "apiserver")
        # Only its keys are wanted; as a certificate, both halves are files already.
        self.authority.issue_client("service-accounts").write(self.folder, "service-accounts")

    def _write_kubeconfig(self, name: str, user: Json) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority-data": _base64(self.authority.cert_pem)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(document))
        return path

    def _etcd_flags(self) -> Flags:
        client, peer = f"http://{HOST}:{self._etcd_port}", f"http://{HOST}:{self._etcd_peer_port}"
        return {
            "name": "test",
            "data-dir": self._path("etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"test={peer}",
        }

    def _apiserver_flags(self) -> dict[str, object]:
        return {
            "etcd-servers": f"http://{HOST}:{self._etcd_port}",
            "bind-address": HOST,
            "secure-port": self.port,
            # No client uses this API server's own endpoints, and loopback is not a valid one.
            "advertise-address": "192.0.2.1",
            "endpoint-reconciler-type": "none",
            "service-cluster-ip-range": SERVICE_NETWORK,
            "authorization-mode": "Node,RBAC",
            "allow-privileged": True,
            "tls-cert-file": self._path("apiserver.crt"),
            "tls-private-key-file": self._path("apiserver.key"),
            "client-ca-file": self._path("ca.crt"),
            "service-account-issuer": ISSUER,
            "service-account-signing-key-file": self._path("service-accounts.key"),
            "service-account-key-file": self._path("service-accounts.crt"),
            "requestheader-client-ca-file": self._path("front-proxy-ca.crt"),
            "requestheader-allowed-names": "front-proxy",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": self._path("front-proxy.crt"),
            "proxy-client-key-file": self._path("front-proxy.key"),
        }


class Api:
    """Plain calls to a control plane, as one of its users, from where it stands."""

    def __init__(self, control_plane: ControlPlane, user: str) -> None:
        self._place, self._port = control_plane.place, control_plane.port
        self._tls = ssl.create_default_context(cadata=control_plane.authority.cert_pem.decode())
        self._tls.load_cert_chain(control_plane.folder / f"{user}.crt", control_plane.folder / f"{user}.key")

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        status, text = self._exchange(method, path, body)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"message": text.decode(errors="replace")}
        return status, answer

    def create(self, path: str, body: Json) -> Json:
        status, answer = self.call("POST", path, body)
        assert status == 201, f"POST {path}: {status} {answer.get('message')}"
        return answer

    def get(self, path: str) -> Json:
        status, answer = self.call("GET", path)
        assert status == 200, f"GET {path}: {status} {answer.get('message')}"
        return answer

    def delete(self, path: str) -> None:
        status, answer = self.call("DELETE", path)
        assert status in (200, 202, 404), f"DELETE {path}: {status} {answer.get('message')}"

    def text(self, path: str) -> str:
        """What is not JSON: /metrics, /readyz."""
        return self._exchange("GET", path, None)[1].decode()

    def answers(self, path: str) -> bool:
        try:
            return self._exchange("GET", path, None)[0] == 200
        except (OSError, HTTPException):
            return False

    def _exchange(self, method: str, path: str, body: Json | None) -> tuple[int, bytes]:
        connection = HTTPSConnection(HOST, self._port)
        raw = self._place.connect(HOST, self._port, timeout=CALL_SECONDS)
        connection.sock = self._tls.wrap_socket(raw, server_hostname=HOST)
        kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": kind, "Accept": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
