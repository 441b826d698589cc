"""A lab with IPv4 works on a kernel without IPv6 (`ipv6.disable=1`)."""

from __future__ import annotations

import socket
import threading
import urllib.request
from pathlib import Path

import pytest

from bootbridge.errors import OperatorError
from bootbridge.lab import control_plane, extension_server, network
from bootbridge.lab.components import Components
from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import FAMILIES, Layout
from bootbridge.lab.namespaces import NodeNamespaces
from tests.support.not_run import not_run


def hide(namespaces: NodeNamespaces, family: str) -> None:
    """Hides the settings of a family, as on a kernel without it."""
    namespaces.run_checked("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", f"/proc/sys/net/{family}")


def forwards(namespaces: NodeNamespaces) -> list[bytes]:
    return namespaces.run_checked(
        "cat", *(f"/proc/sys/{name}" for name in network.FORWARDING.values())
    ).split()


def test_forwarding_is_enabled_only_for_the_given_family(namespaces: NodeNamespaces) -> None:
    network.enable_forwarding(namespaces, 4)
    assert forwards(namespaces) == [b"1", b"0"]
    hide(namespaces, "ipv6")
    network.enable_forwarding(namespaces, 4)


@pytest.mark.parametrize("version", [4, 6])
def test_forwarding_of_a_missing_family_is_an_error(namespaces: NodeNamespaces, version: int) -> None:
    hide(namespaces, f"ipv{version}")
    with pytest.raises(OperatorError, match=network.FORWARDING[version]):
        network.enable_forwarding(namespaces, version)


@pytest.mark.parametrize("families", list(FAMILIES))
def test_wildcard_address_is_ipv6_only_if_the_lab_has_ipv6(
    families: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, started = Layout(1, families), list[str]()
    monkeypatch.setattr(Lab, "start", lambda _, node, name, argv: started.extend(argv))
    Lab(tmp_path, layout).start_etcd(Components({"etcd": Path("/etcd")}, tmp_path))
    host = "0.0.0.0" if families == "ipv4" else "[::]"
    assert f"--listen-client-urls=http://{host}:2379" in started
    served = control_plane.base_config(layout.bootstrap, layout)["servingInfo"]
    assert served["bindAddress"] == f"{host}:6443"


@pytest.mark.parametrize("families", ["ipv6", "dual"])
def test_lab_with_ipv6_is_rejected_before_anything_is_created(
    families: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "IPV6", tmp_path / "none")
    with pytest.raises(OperatorError, match="--ip: IPv6 is disabled"):
        network.check_ipv6(Layout(1, families))
    network.check_ipv6(Layout(1))


@pytest.mark.parametrize("has_ipv6", [True, False])
def test_extension_server_listens_with_or_without_ipv6(
    has_ipv6: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_ipv6 and not socket.has_dualstack_ipv6():
        not_run("this machine has no IPv6")
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: has_ipv6)
    with extension_server._Server(0, None) as server:
        assert (server.address_family == socket.AF_INET6) == has_ipv6
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{server.server_port}/healthz", timeout=30) as answer:
                assert answer.status == 200
        finally:
            server.shutdown()
