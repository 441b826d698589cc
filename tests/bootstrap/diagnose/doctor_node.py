"""A node with a working installation, which tests of `doctor` and `gather` break."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from bootbridge.bootstrap.plan.plan import IPAddress
from bootbridge.cli import doctor
from bootbridge.cli.main import main
from tests.support import fake_kubelet
from tests.support.bootstrap_node import BootstrapNode, bootstrap_node
from tests.support.process_program import ROOT, until

Json = dict[str, Any]
HERE = (IPv4Address("127.0.0.1"),)


class InstalledNode:
    """The node, the results of `doctor`, and faults that `repair` reverts."""

    def __init__(self, node: BootstrapNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.plan = node.plan
        self.api = node.api
        self._monkeypatch = monkeypatch
        self.output = self.stdout = ""
        self.address_is(*HERE)

    def address_is(self, *addresses: IPAddress) -> None:
        self._monkeypatch.setattr(doctor, "node_addresses", lambda plan: addresses)

    def run(self, verb: str, *flags: str) -> int:
        out, errors = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            code = main([verb, "--root", str(self.node.root), *flags])
        self.stdout, self.output = out.getvalue(), out.getvalue() + errors.getvalue()
        return code

    def doctor(self, *flags: str) -> Json:
        code = self.run("doctor", "--json", *flags)
        document: Json = json.loads(self.stdout)
        assert code == (0 if document["works"] else 2), self.output
        return document

    def put(self, plural: str, namespace: str, name: str, **fields: Any) -> None:
        """Creates an object as another client does."""
        metadata = {"name": name, "namespace": namespace, **fields.pop("metadata", {})}
        self.api.objects[(plural, namespace, name)] = {"metadata": metadata, **fields}

    def repair(self) -> None:
        self.api.faults.clear()
        self.api.nodes = ("node0", "node1")
        self.address_is(*HERE)
        # A kube-apiserver that restarts may close the connection; `up` is repeated.
        until(lambda: self.node.run("up") == 0, "the tunnel is installed again", 60)
        until(lambda: self.doctor()["works"], "the tunnel works again", 60)

    def path(self, node_path: str) -> Path:
        return self.node.path(node_path)


@contextmanager
def installed_node(folder: Path) -> Iterator[InstalledNode]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        # With its real name, by which `doctor` finds it.
        program = folder / "kube-apiserver"
        program.symlink_to(ROOT / "tests/support/apiserver_front.py")
        monkeypatch.setitem(fake_kubelet.PROGRAMS, "kube-apiserver", [sys.executable, str(program)])
        with bootstrap_node(folder) as node:
            node.up()
            yield InstalledNode(node, monkeypatch)
