"""Access to the API server: kubeconfig files and the service account of the pod."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootbridge.errors import OperatorError
from bootbridge.kube.client import KubeClient, KubeUnreachable
from bootbridge.kube.kinds import LEASE
from bootbridge.kube.kubeconfig import load_access, load_in_cluster, load_kubeconfig
from bootbridge.kube.objects import list_objects
from bootbridge.trust.authority import Authority
from tests.kube.conftest import TOKEN, until
from tests.support.fake_api_server import FakeApiServer


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def document(server: str, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }


def write(folder: Path, content: Any, *, as_json: bool = False) -> Path:
    path = folder / "kubeconfig"
    path.write_text(json.dumps(content) if as_json else yaml.safe_dump(content))
    return path


async def lists_leases(path: Path) -> None:
    client = KubeClient(load_kubeconfig(path), qps=-1)
    try:
        assert (await client.send(list_objects(LEASE, "kube-system"))).status == 200
    finally:
        await client.aclose()


def ca_data(api: FakeApiServer) -> dict[str, str]:
    return {"certificate-authority-data": b64(api.authority.cert_pem)}


@pytest.mark.parametrize("as_json", [False, True], ids=["yaml", "json"])
async def test_inline_client_certificates(api: FakeApiServer, tmp_path: Path, as_json: bool) -> None:
    identity = api.issue_client("proxy-server")
    user = {
        "client-certificate-data": b64(identity.cert_pem),
        "client-key-data": b64(identity.key_pem),
    }
    config = document(f"https://127.0.0.1:{api.port}", ca_data(api), user)
    await lists_leases(write(tmp_path, config, as_json=as_json))


async def test_certificate_files_are_relative_to_the_kubeconfig(api: FakeApiServer, tmp_path: Path) -> None:
    api.issue_client("proxy-server").write(tmp_path, "me")
    api.authority.write(tmp_path, "ca")
    user = {"client-certificate": "me.crt", "client-key": "me.key"}
    config = document(f"https://127.0.0.1:{api.port}", {"certificate-authority": "ca.crt"}, user)
    await lists_leases(write(tmp_path, config))


async def test_a_token_authenticates(api: FakeApiServer, tmp_path: Path) -> None:
    config = document(f"https://127.0.0.1:{api.port}", ca_data(api), {"token": TOKEN})
    await lists_leases(write(tmp_path, config))


async def test_a_token_file_is_read_again_for_each_request(api: FakeApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    user = {"tokenFile": "token", "token": "stale"}
    path = write(tmp_path, document(f"https://127.0.0.1:{api.port}", ca_data(api), user))
    client = KubeClient(load_kubeconfig(path), qps=-1)
    await client.send(list_objects(LEASE, "kube-system"))
    api.bearer_tokens = {"rotated"}
    token.write_text("rotated")
    await client.send(list_objects(LEASE, "kube-system"))
    token.unlink()
    await client.send(list_objects(LEASE, "kube-system"))  # the last valid token stays in use
    await client.aclose()


async def test_an_invalid_new_file_is_logged_once_and_the_old_one_stays(
    api: FakeApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until the file is valid again."""
    ca = tmp_path / "ca.crt"
    ca.write_bytes(api.authority.cert_pem)
    cluster = {"certificate-authority": "ca.crt"}
    path = write(tmp_path, document(f"https://127.0.0.1:{api.port}", cluster, {"token": TOKEN}))
    trust = load_kubeconfig(path).tls
    assert trust is not None
    old = trust.context()
    ca.write_bytes(api.authority.cert_pem[:100])
    assert [trust.context() is old for _ in range(3)] == [True] * 3
    assert [record.message for record in caplog.records] == ["credential reload failed"]
    ca.write_bytes(api.authority.cert_pem)
    assert trust.context() is not old


async def test_the_servers_name_may_differ_from_its_address(tmp_path: Path) -> None:
    async with FakeApiServer(tmp_path, names=("kubernetes",)) as api:
        cluster = {**ca_data(api), "tls-server-name": "kubernetes"}
        config = document(f"https://127.0.0.1:{api.port}", cluster, {"token": TOKEN})
        await lists_leases(write(tmp_path, config))


async def test_an_unexpected_name_or_ca_is_not_trusted(api: FakeApiServer, tmp_path: Path) -> None:
    other = {"certificate-authority-data": b64(Authority.create("another").cert_pem)}
    for cluster in (other, {**ca_data(api), "tls-server-name": "other.example"}):
        config = document(f"https://127.0.0.1:{api.port}", cluster, {"token": TOKEN})
        with pytest.raises(KubeUnreachable, match="certificate not trusted"):
            await lists_leases(write(tmp_path, config))
    assert not api.calls


async def test_insecure_skip_tls_verify_disables_verification(api: FakeApiServer, tmp_path: Path) -> None:
    cluster = {"insecure-skip-tls-verify": True}
    await lists_leases(write(tmp_path, document(f"https://127.0.0.1:{api.port}", cluster, {"token": TOKEN})))


async def test_an_ipv6_server(tmp_path: Path) -> None:
    async with FakeApiServer(tmp_path, host="::1") as api:
        config = document(f"https://[::1]:{api.port}", ca_data(api), {"token": TOKEN})
        await lists_leases(write(tmp_path, config))
        assert api.calls[0].headers["host"] == f"[::1]:{api.port}"


async def test_a_path_in_the_server_url_is_the_prefix_of_every_request(
    api: FakeApiServer, tmp_path: Path
) -> None:
    path = write(tmp_path, document(f"https://127.0.0.1:{api.port}/k8s/x/", ca_data(api), {"token": TOKEN}))
    with pytest.raises(Exception, match="404"):
        await lists_leases(path)
    assert api.calls[0].path.startswith("/k8s/x/apis/coordination.k8s.io/")


async def test_the_pods_service_account_is_used_without_a_kubeconfig(tmp_path: Path) -> None:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    async with FakeApiServer(tmp_path, host="::1") as api:
        api.authority.write(folder)
        (folder / "token").write_text(TOKEN)
        environ = {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": str(api.port)}
        client = KubeClient(load_access("", environ, folder), qps=-1)
        await client.send(list_objects(LEASE, "kube-system"))
        await client.aclose()


async def test_the_next_connection_uses_a_rotated_ca(tmp_path: Path) -> None:
    async with FakeApiServer(tmp_path) as old:
        ca = old.authority.write(tmp_path, "ca")
        config = document(
            f"https://127.0.0.1:{old.port}", {"certificate-authority": "ca.crt"}, {"token": TOKEN}
        )
        client = KubeClient(load_kubeconfig(write(tmp_path, config)), qps=-1)
        await client.send(list_objects(LEASE, "kube-system"))
        port = old.port
    new = FakeApiServer(tmp_path)
    new.port = port
    async with new:
        with pytest.raises(KubeUnreachable, match="certificate not trusted"):
            await client.send(list_objects(LEASE, "kube-system"))
        ca.write_text("half written")
        with pytest.raises(KubeUnreachable, match="certificate not trusted"):
            await client.send(list_objects(LEASE, "kube-system"))
        new.authority.write(tmp_path, "ca")
        await client.send(list_objects(LEASE, "kube-system"))
        await client.aclose()
        await until(lambda: not new._streams)


HTTPS = "https://127.0.0.1:6443"


@pytest.mark.parametrize(
    ("content", "field", "message"),
    [
        (document(HTTPS, user={"exec": {"command": "aws"}}), "users[u].user.exec", "not supported"),
        (document(HTTPS, user={"auth-provider": {"x": 1}}), "users[u].user.auth-provider", "not supported"),
        (document(HTTPS, user={"username": "joe"}), "users[u].user.username", "not supported"),
        (document(HTTPS, user={"as": "joe"}), "users[u].user.as", "not supported"),
        (document(HTTPS, {"proxy-url": "http://p"}), "clusters[c].cluster.proxy-url", "not supported"),
        (document(""), "clusters[c].cluster.server", "missing"),
        (document("ftp://x"), "clusters[c].cluster.server", "invalid URL"),
        (document("https://x:99999"), "clusters[c].cluster.server", "invalid URL"),
        (document("https://[::1"), "clusters[c].cluster.server", "invalid URL"),
        (document("https://user:pw@x"), "clusters[c].cluster.server", "invalid URL"),
        (document("https://x/ path"), "clusters[c].cluster.server", "invalid URL"),
        (document("http://10.0.0.1", user={"token": "t"}), "clusters[c].cluster.server", "unencrypted"),
        (document(HTTPS, {"certificate-authority": "no.crt"}), "clusters[c].cluster.certificate-authority",
         "No such file"),
        (document(HTTPS, {"certificate-authority-data": "%"}), "certificate-authority-data", "base64"),
        (document(HTTPS, {"certificate-authority-data": b64(b"x")}), "cluster.certificate-authority-data",
         "no valid CA"),
        (document(HTTPS, {"certificate-authority-data": b64(b"x"), "insecure-skip-tls-verify": True}),
         "cluster.insecure-skip-tls-verify", "conflicts with"),
        (document(HTTPS, {"insecure-skip-tls-verify": "yes"}), "insecure-skip-tls-verify", "expected"),
        (document(HTTPS, user={"client-certificate-data": b64(b"x")}), "user.client-key", "required"),
        (document(HTTPS, user={"client-key-data": b64(b"x")}), "user.client-certificate", "required"),
        (document(HTTPS, user={"client-key-data": b64(b"x"), "client-certificate-data": b64(b"y")}),
         "users[u].user.client-key-data", "do not match"),
        (document(HTTPS, user={"tokenFile": "gone"}), "users[u].user.tokenFile", "No such file"),
        (document(HTTPS, user={"token": 12}), "users[u].user.token", "string expected"),
        (document(HTTPS, user={"token": "two words"}), "users[u].user.token", "invalid character"),
        ({**document(HTTPS), "current-context": ""}, "current-context", "missing"),
        ({**document(HTTPS), "current-context": "other"}, "contexts", "'other'"),
        ({**document(HTTPS), "clusters": []}, "clusters", "'c'"),
        ({**document(HTTPS), "users": 5}, "users", "list expected"),
        ([1, 2], "--kubeconfig", "mapping expected"),
        ("text", "--kubeconfig", "mapping expected"),
    ],
)  # fmt: skip
def test_an_invalid_kubeconfig_is_reported_with_file_and_field(
    tmp_path: Path, content: Any, field: str, message: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(OperatorError) as error:
        load_kubeconfig(path)
    assert str(path) in str(error.value)
    assert field in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["a: [", "{not json", "\tx: 1"])
def test_invalid_yaml_is_reported_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(OperatorError, match="invalid YAML at line 1"):
        load_kubeconfig(path)


def test_a_missing_kubeconfig_is_reported_with_its_flag(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"--kubeconfig: cannot read .*/none: No such file"):
        load_access(str(tmp_path / "none"))


def test_an_encrypted_key_is_rejected_without_a_password_prompt(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    identity = Authority.create("ca").issue_client("me")
    key = serialization.load_pem_private_key(identity.key_pem, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    user = {"client-certificate-data": b64(identity.cert_pem), "client-key-data": b64(encrypted)}
    with pytest.raises(OperatorError, match=r"client-key-data: encrypted private key"):
        load_kubeconfig(write(tmp_path, document(HTTPS, user=user)))


@pytest.mark.parametrize("environ", [{}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}])
def test_outside_a_pod_a_kubeconfig_is_required(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(OperatorError, match="--kubeconfig: not inside a cluster"):
        load_in_cluster(environ, tmp_path)


def test_a_missing_service_account_file_is_reported(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(OperatorError, match=r"in-cluster CA: cannot read .*ca\.crt: No such file"):
        load_in_cluster(environ, tmp_path)


def test_repr_does_not_show_secrets(tmp_path: Path) -> None:
    path = write(tmp_path, document(HTTPS, user={"token": "s3cr3t"}))
    access = load_kubeconfig(path)
    assert "s3cr3t" not in repr(access) + repr(access.token) + repr(KubeClient(access))


def test_loading_an_inline_key_leaves_no_file_and_no_descriptor(tmp_path: Path) -> None:
    identity = Authority.create("ca").issue_client("me")
    user = {"client-certificate-data": b64(identity.cert_pem), "client-key-data": b64(identity.key_pem)}
    path = write(tmp_path, document(HTTPS, user=user))
    before = os.listdir("/proc/self/fd")
    load_kubeconfig(path)
    assert os.listdir("/proc/self/fd") == before
    assert os.listdir(tmp_path) == ["kubeconfig"]


def test_a_json_kubeconfig_imports_neither_yaml_nor_other_large_modules(tmp_path: Path) -> None:
    """They would increase the memory of every server and agent process."""
    path = write(tmp_path, document(HTTPS), as_json=True)
    script = f"""
import sys
from pathlib import Path
from bootbridge.kube import kubeconfig, lease_garbage_collector, lease_counter, lease_publisher, token_review
kubeconfig.load_kubeconfig(Path({str(path)!r}))
large = {{"yaml", "cryptography", "http.client", "http.server", "aiohttp", "requests", "argparse"}}
print(sorted(large & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
