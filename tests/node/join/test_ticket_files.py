"""The files of a ticket are validated, then written."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bootbridge.common.host import Host
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_api.messages import ControlPlaneFile, Ticket
from bootbridge.node import node_paths
from bootbridge.node.join.ticket_files import TicketUnusable, check_pair, write_serving, write_ticket
from bootbridge.trust.authority import Authority
from tests.node.kubeadm.examples import ticket

AUTHORITY = Authority.create("kubernetes")
SERVING = AUTHORITY.issue_server(["node-1"])
FILES = tuple(ControlPlaneFile(name, name.encode()) for name in CONTROL_PLANE_FILES)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def worker() -> Ticket:
    return ticket(kubelet_certificate=SERVING.cert_pem)


def control_plane() -> Ticket:
    return replace(worker(), control_plane=True, control_plane_files=FILES)


def everything_in(host: Host) -> list[str]:
    return [f"/{path.relative_to(host.root)}" for path in sorted(host.root.rglob("*")) if path.is_file()]


def test_a_worker_gets_only_the_kubelet_certificate_and_key(host: Host) -> None:
    write_ticket(host, worker(), SERVING.key_pem)
    assert everything_in(host) == [node_paths.SERVING]
    assert host.read(node_paths.SERVING) == SERVING.cert_pem + SERVING.key_pem
    assert host.mode(node_paths.SERVING) == 0o600


def test_a_control_plane_gets_the_ca_files_with_keys_readable_by_root_only(host: Host) -> None:
    write_ticket(host, control_plane(), SERVING.key_pem)
    modes = {name: oct(host.mode(f"{node_paths.PKI}/{name}")) for name in CONTROL_PLANE_FILES}
    assert modes == {
        "ca.crt": "0o644",
        "ca.key": "0o600",
        "sa.pub": "0o644",
        "sa.key": "0o600",
        "front-proxy-ca.crt": "0o644",
        "front-proxy-ca.key": "0o600",
        "etcd/ca.crt": "0o644",
        "etcd/ca.key": "0o600",
    }
    assert host.read(f"{node_paths.PKI}/etcd/ca.key") == b"etcd/ca.key"


def test_a_retry_overwrites_the_files(host: Host) -> None:
    write_ticket(host, control_plane(), SERVING.key_pem)
    other = AUTHORITY.issue_server(["node-1"])
    again = replace(control_plane(), kubelet_certificate=other.cert_pem)
    write_ticket(host, again, other.key_pem)
    assert host.read(node_paths.SERVING) == other.cert_pem + other.key_pem


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (FILES[1:], "missing: ca.crt"),
        ((*FILES, FILES[0]), "duplicate"),
        ((*FILES[1:], ControlPlaneFile("ca.crt", b"")), "empty"),
        ((), "missing"),
    ],
)
def test_a_control_plane_ticket_must_have_each_file_once(
    host: Host, files: tuple[ControlPlaneFile, ...], message: str
) -> None:
    with pytest.raises(TicketUnusable, match=message):
        write_ticket(host, replace(control_plane(), control_plane_files=files), SERVING.key_pem)
    assert everything_in(host) == []


def test_a_worker_ticket_with_control_plane_files_is_rejected(host: Host) -> None:
    with pytest.raises(TicketUnusable, match="worker ticket"):
        write_ticket(host, replace(worker(), control_plane_files=FILES), SERVING.key_pem)
    assert everything_in(host) == []


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        (b"", SERVING.key_pem, "invalid PEM"),
        (b"no certificate", SERVING.key_pem, "invalid PEM"),
        (SERVING.cert_pem, b"no key", "invalid PEM"),
        (SERVING.cert_pem, AUTHORITY.issue_server(["other"]).key_pem, "does not match the key"),
    ],
)
def test_a_certificate_for_another_key_is_rejected_before_the_first_write(
    host: Host, certificate: bytes, key: bytes, message: str
) -> None:
    with pytest.raises(TicketUnusable, match=message):
        write_ticket(host, replace(control_plane(), kubelet_certificate=certificate), key)
    with pytest.raises(TicketUnusable, match=message):
        write_serving(host, certificate, key)
    assert everything_in(host) == []


class CrashError(BaseException):
    """Simulates a power failure."""


def test_an_interrupted_renewal_leaves_a_matching_pair(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after every file operation: certificate and key always match."""
    fresh = AUTHORITY.issue_server(["node-1"])
    pairs = [each.cert_pem + each.key_pem for each in (SERVING, fresh)]
    met = set()
    for crash_at in itertools.count():
        write_serving(host, SERVING.cert_pem, SERVING.key_pem)
        with monkeypatch.context() as patch:
            moments = itertools.count()
            for module, name in ((tempfile, "mkstemp"), (os, "fchmod"), (os, "fsync"), (os, "replace")):
                patch.setattr(module, name, _crashing(getattr(module, name), moments, crash_at))
            try:
                write_serving(host, fresh.cert_pem, fresh.key_pem)
                over = True
            except CrashError:
                over = False
        left = host.read(node_paths.SERVING) or b""
        check_pair(left, left)
        met.add(pairs.index(left))
        if over:
            break
    assert met == {0, 1}
    assert crash_at == 2 * len(("mkstemp", "fchmod", "fsync", "replace", "fsync of the directory"))


def _crashing(call: Any, moments: Iterator[int], crash_at: int) -> Any:
    def called(*given: Any, **named: Any) -> Any:
        if next(moments) == crash_at:
            raise CrashError
        answer = call(*given, **named)
        if next(moments) == crash_at:
            raise CrashError
        return answer

    return called


@pytest.mark.parametrize(
    "name", ["../admin.conf", "/etc/shadow", "etcd/../../x", "ca.crt/", "./ca.crt", "CA.crt", "", "ca.crt\0"]
)
def test_a_control_plane_file_with_any_other_name_is_rejected_and_nothing_is_written(
    host: Host, name: str
) -> None:
    """A file name is joined to a path: an unchecked one could write anywhere."""
    bad = replace(control_plane(), control_plane_files=(*FILES, ControlPlaneFile(name, b"x")))
    with pytest.raises(TicketUnusable, match="unknown control plane file"):
        write_ticket(host, bad, SERVING.key_pem)
    assert everything_in(host) == []
