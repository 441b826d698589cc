"""Components in a specification and in a ticket (errors: tests/documents/test_cluster_yaml.py)."""

from __future__ import annotations

import pytest

from bootbridge.common.documents import convert, dump
from bootbridge.join_api.components import Component

KUBELET = Component("https://example/kubelet", "sha256:" + "0" * 64, "/usr/bin/kubelet")
PLUGINS = Component("https://example/cni.tgz", "sha256:" + "1" * 64, "/opt/cni/bin", extract=True)


@pytest.mark.parametrize("component", [KUBELET, PLUGINS, Component(install_path="/usr/bin/kubeadm")])
def test_round_trip_by_document_and_by_wire(component: Component) -> None:
    assert convert(Component, dump(component), "components") == component
    assert Component.decode(component.encode()) == component
