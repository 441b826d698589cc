"""Runs bootkube.sh of an injected file on nodes with faults: it completes, and the receipt is true."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootbridge.bootstrap.render import egress_selector
from tests.bootstrap.ignition.test_injected_node import PODMAN, injected_node
from tests.bootstrap.render.fake_programs import NEWEST, OLDEST
from tests.bootstrap.render.shell_node import Network, Node, needs_node
from tests.support.process_program import until

pytestmark = needs_node

BOOTKUBE_RUN = "exec bash /usr/local/bin/bootkube.sh"
DONE = "/opt/openshift/.bootkube.done"
# Stops at a step until the machine is switched off, and keeps the egress configuration with which the
# kube-apiserver starts: cluster-bootstrap starts it (all releases).
STOP_AT_STEP = r"""#!/usr/bin/bash
if [[ -e /cluster/stops-at && " $* " == *"$(</cluster/stops-at)"* ]]; then
  mv /cluster/stops-at /cluster/stopped; sleep 600
fi
if [[ " $* " == *" cluster-bootstrap "* ]]; then
  cp /etc/kubernetes/bootstrap-configs/bootbridge-egress-selector.yaml /cluster/egress-at-start
fi
"""
STEPS = (
    "etcd render",
    "image apiserver-network-proxy",
    "--entrypoint=/usr/bin/proxy-server",
    "--entrypoint=/usr/bin/proxy-agent",
    "cluster-kube-apiserver-operator render",
    "cluster-bootstrap start",
)


@pytest.fixture
def network(network: Network) -> Network:
    network.interface("nic0", "192.168.126.5/24")
    return network


@pytest.fixture
def node(tmp_path: Path, network: Network) -> Node:
    return injected_node(tmp_path / "node", network, "4.13", STOP_AT_STEP + PODMAN.partition("\n")[2])


def shorten_waits(node: Node) -> None:
    script = node.path(node.plan.paths.hook_script.replace("/usr/local/bin/", "/local/"))
    text = re.sub(r"(BOOTBRIDGE_SERVER_(?:START|RECHECK)_SECONDS)=\d+", r"\1=1", script.read_text())
    script.write_text(text)


def complete(node: Node) -> str:
    done = node.run(BOOTKUBE_RUN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert node.path(DONE).exists()
    return done.stdout + done.stderr


def receipt_of(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.path(node.plan.paths.receipt).read_text())
    return found


def egress_at_start(node: Node) -> Any:
    return yaml.safe_load((node.root / "cluster/egress-at-start").read_text())


def power_off(node: Node) -> None:
    """Ends all processes; files below /run and rules of nft are gone, the rest stays."""
    node.network.end_processes()
    node._kubelet_runs = False
    shutil.rmtree(node.root / "run")
    (node.root / "run").mkdir()
    subprocess.run(node.network.command(["nft", "flush", "ruleset"]), check=True)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_payloads_programs_of_old_and_new_releases(node: Node, version: str) -> None:
    """The kube-apiserver gets the tunnel; nothing remains, no rule of nft either."""
    node.offer_programs(version)

    complete(node)

    assert egress_at_start(node) == egress_selector.configuration(node.plan)
    assert receipt_of(node)["clean"] is True
    assert receipt_of(node)["warnings"] == []
    assert "bootbridge" not in node.run("nft list tables").stdout


def test_a_server_that_ends_again_and_again(node: Node) -> None:
    """The kube-apiserver starts without the tunnel, and the log has the server's last words."""
    shorten_waits(node)
    (node.root / "cluster/server-crashes").write_text("Error: failed to load x509 key pair\n")

    logged = complete(node)

    assert "last words: Error: failed to load x509 key pair" in logged
    assert egress_at_start(node) == egress_selector.direct_configuration()
    assert receipt_of(node)["clean"] is True
    assert [each for each in receipt_of(node)["warnings"] if "goes on without the tunnel" in each]


@pytest.mark.parametrize("step", STEPS)
def test_a_power_failure_at_any_step(node: Node, step: str) -> None:
    """bootkube.sh starts again, and completes with the tunnel."""
    node.offer_programs(OLDEST)
    (node.root / "cluster/stops-at").write_text(step)
    node.run(":")  # starts the kubelet
    running = subprocess.Popen(
        node.command(BOOTKUBE_RUN), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until((node.root / "cluster/stopped").exists, f"it reaches {step!r}", 60)
    running.kill()
    running.wait()
    power_off(node)

    complete(node)

    assert egress_at_start(node) == egress_selector.configuration(node.plan)
    assert receipt_of(node)["clean"] is True
    assert receipt_of(node)["warnings"] == []
