"""A component as it stands in a specification, and as it travels in a ticket."""

from __future__ import annotations

from typing import Any

import pytest

from bootbridge.errors import OperatorError
from bootbridge.join_api.components import Component

KUBELET = Component("https://example/kubelet", "sha256:" + "0" * 64, "/usr/bin/kubelet")
PLUGINS = Component("https://example/cni.tgz", "", "/opt/cni/bin", extract=True)


@pytest.mark.parametrize("component", [KUBELET, PLUGINS, Component(install_path="/usr/bin/kubeadm")])
def test_it_comes_back_as_it_went_by_document_and_by_wire(component: Component) -> None:
    assert Component.load(component.document, "components") == component
    assert Component.decode(component.encode()) == component


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("kubelet", "needs an installPath"),
        ({"url": "https://example/kubelet"}, "needs an installPath"),
        ({"installPath": 7}, "needs an installPath"),
        ({"installPath": "usr/bin/kubelet"}, "'usr/bin/kubelet' is no absolute path"),
        ({"installPath": "/usr/../etc/shadow"}, "no absolute path"),
        ({"installPath": "/x", "hash": "md5:0"}, "is no hash like sha256:"),
        ({"installPath": "/x", "url": 7}, "url is not text"),
        ({"installPath": "/x", "url": "HTTP://example/x"}, "over plain http, and has no hash"),
        ({"installPath": "/x", "extract": "yes"}, "extract is neither true nor false"),
        ({"installPath": "/x", "install_path": "/y"}, "unknown field 'install_path'"),
    ],
)
def test_a_mistake_is_one_clear_error(document: Any, said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        Component.load(document, "components")
