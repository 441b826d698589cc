"""Runs bootkube.sh of an injected ignition file on a simulated node, with the real hooks."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from bootbridge.bootstrap.ignition.document import Ignition
from bootbridge.bootstrap.ignition.inject import inject
from bootbridge.bootstrap.plan.plan import Plan
from tests.bootstrap.render.fake_programs import RELEASE_IMAGE
from tests.bootstrap.render.shell_node import Network, Node, needs_node
from tests.support.bootkube_scripts import RELEASES, script
from tests.support.ignition_documents import BOOTKUBE, compact, document

pytestmark = needs_node

STAGES = [
    "etcd-bootstrap",
    "konnectivity-certs",
    "konnectivity-server-bootstrap",
    "kube-apiserver-bootstrap",
    "konnectivity-agent-manifest",
    "cb-bootstrap",
]
LAST_STAGES = ["konnectivity-agent-apply", "konnectivity-apiserver-end", "konnectivity-cleanup"]
# Fakes the release image (`image NAME`), the operator's render command, which writes a configuration that
# depends on the override, and cluster-bootstrap as of 4.4 to 5.0: it creates the objects of its directory
# until all exist, fails if one is still refused after 60 minutes, and runs longer than our objects need.
PODMAN = r"""#!/usr/bin/bash
printf '%s\n' "$*" >>/cluster/podman.calls
case " $* " in
*" --entrypoint=/usr/bin/proxy-server "*) cat /cluster/help/proxy-server ;;
*" --entrypoint=/usr/bin/proxy-agent "*) cat /cluster/help/proxy-agent ;;
*" image apiserver-network-proxy "*) echo registry.example/proxy@sha256:0123 ;;
*" render "*apiserver*)
  mkdir -p kube-apiserver-bootstrap
  { printf 'apiServerArguments:\n'
    case " $* " in *" --config-override-files=/assets/"*)
      printf '  egress-selector-config-file:\n'
      printf '  - /etc/kubernetes/config/bootbridge-egress-selector.yaml\n' ;; esac
    printf 'kind: KubeAPIServerConfig\n'
  } >kube-apiserver-bootstrap/config ;;
*" cluster-bootstrap "*)
  [[ ! -e /cluster/fails ]] || exit 1
  for file in manifests/*.yaml; do
    kind=$(sed -n 's/^kind: //p' "$file"); name=$(sed -n '/^  name: /{s///p;q}' "$file")
    [[ ! -e /cluster/refuses-${kind,,} ]] || { sleep 3600; exit 1; }
    mkdir -p "/cluster/${kind,,}" && cp "$file" "/cluster/${kind,,}/$name"
  done
  until [[ $(cat bootbridge/agent-objects.json) == *refused* || ! -e /run/bootbridge-apply.pid ]]; do
    /usr/bin/sleep 0.02
  done ;;
esac
"""


def bootkube_of(release: str) -> bytes:
    """Returns the script with the library that the real one sources for `image_for`."""
    start = b"cd /opt/openshift\n"
    text = script(release).replace(start, start + b". /usr/local/bin/release-image.sh\n", 1)
    # Where a test ends the script.
    record = b"record_service_stage_start() { "
    assert record in text
    return text.replace(record, record + b'bootbridge_crash "$1"; ')


@pytest.fixture
def network(network: Network) -> Network:
    # Two interfaces: the install-config's machine network decides which one agents dial.
    network.interface("nic0", "192.168.126.5/24")
    network.interface("nic1", "10.99.0.5/24")
    network.ip("route add default via 10.99.0.1")
    return network


def injected_node(folder: Path, network: Network, release: str, podman: str = PODMAN) -> Node:
    """Returns a node with the files of an injected ignition file, for bootkube.sh of a release."""
    node = Node(folder, network)
    data = compact(document(bootkube_of(release)))
    quick = lambda plan: replace(plan, key_kind="ecdsa-p256")  # noqa: E731
    injected = inject(data, quick, datetime.now(UTC), "bootstrap.ign")
    ignition = Ignition.parse(injected.document, "bootstrap.ign")
    node.plan = injected.plan
    for path in (*injected.files, BOOTKUBE):
        place = node.path(path.replace("/usr/local/bin/", "/local/"))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_bytes(ignition.content(path) or b"")
    node.path(node.plan.paths.apiserver_config).unlink()
    (node.root / "local/release-image.sh").write_text(f"{RELEASE_IMAGE}\nbootbridge_crash() {{ :; }}\n")
    node._program("podman", podman)
    node.offer([name for name in ("cp", "mv") if not (node.root / "tools" / name).exists()])
    return node


@pytest.fixture(params=RELEASES)
def node(request: pytest.FixtureRequest, tmp_path: Path, network: Network) -> Node:
    return injected_node(tmp_path / "node", network, request.param)


def start(node: Node) -> int:
    done = node.run("exec bash /usr/local/bin/bootkube.sh")
    node.output = done.stdout + done.stderr  # type: ignore[attr-defined]
    return done.returncode


def stages(node: Node) -> list[str]:
    return node.path("/opt/openshift/stages").read_text().replace("stage ", "").split()


def digests(node: Node, plan: Plan) -> dict[str, str]:
    folder = node.path(plan.paths.tls)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_bootstrap_that_fails_once(node: Node) -> None:
    """Order of the stages, restart, removal and receipt, with bootkube.sh of every release."""
    plan = node.plan
    (node.root / "cluster/fails").touch()
    assert start(node) != 0
    assert stages(node) == STAGES, node.output  # type: ignore[attr-defined]
    pod = yaml.safe_load(node.path(plan.paths.server_pod).read_text())
    assert pod["spec"]["containers"][0]["image"] == "registry.example/proxy@sha256:0123"
    daemonset = yaml.safe_load(node.path(plan.paths.daemonset_manifest).read_text())
    arguments = daemonset["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--proxy-server-host=192.168.126.5" in arguments
    arguments = yaml.safe_load(node.path(plan.paths.apiserver_config).read_text())["apiServerArguments"]
    assert arguments["egress-selector-config-file"] == [plan.paths.egress_config_seen_by_apiserver]
    made = digests(node, plan)
    assert "ca.key" not in made

    (node.root / "cluster/fails").unlink()
    assert start(node) == 0, node.output  # type: ignore[attr-defined]
    assert stages(node) == [*STAGES, "cb-bootstrap", *LAST_STAGES]
    assert node.path("/opt/openshift/.bootkube.done").exists()
    receipt = json.loads(node.path(plan.paths.receipt).read_text())
    assert receipt["clean"] is True, receipt
    for kind in ("namespace", "daemonset", "secret"):
        assert not [path for path in (node.root / "cluster" / kind).glob("*") if "konnectivity" in path.name]
    for gone in (plan.paths.tls, plan.paths.server_pod, plan.paths.egress_config, plan.paths.secret_manifest):
        assert not node.path(gone).exists(), gone


def test_a_restart_after_a_failure_keeps_the_certificates(node: Node) -> None:
    """Existing agents stay trusted."""
    (node.root / "cluster/fails").touch()
    assert start(node) != 0
    before = digests(node, node.plan)
    assert start(node) != 0
    assert digests(node, node.plan) == before


def test_a_refused_daemonset_does_not_fail_the_bootstrap(node: Node) -> None:
    """cluster-bootstrap would wait for it for 60 minutes."""
    (node.root / "cluster/refuses-daemonset").touch()
    assert start(node) == 0, node.output  # type: ignore[attr-defined]
    assert node.path("/opt/openshift/.bootkube.done").exists()
    assert node.now() < 600
    receipt = json.loads(node.path(node.plan.paths.receipt).read_text())
    assert receipt["clean"] is True
    assert any("DaemonSet" in text and "forbidden" in text for text in receipt["warnings"])


def test_a_reboot_between_any_two_stages(node: Node) -> None:
    """The node ends before each stage once. The next boot continues, and the receipt is true."""
    for stage in [*STAGES, *LAST_STAGES, "none"]:
        # Ends the script and all its processes once, when this stage starts.
        crash = f"[[ $1 != {stage} || -e crashed-$1 ]] || {{ : >crashed-$1; exit 137; }}"
        library = node.root / "local/release-image.sh"
        library.write_text(f"{RELEASE_IMAGE}\nbootbridge_crash() {{ {crash}; }}\n")
        code = start(node)
        assert (code == 0) == (stage == "none"), node.output  # type: ignore[attr-defined]
        assert node.path("/opt/openshift/.bootkube.done").exists() == (stage == "none")
        node.reboot()
    receipt = json.loads(node.path(node.plan.paths.receipt).read_text())
    assert receipt["clean"] is True, receipt
    for kind in ("namespace", "daemonset", "secret"):
        assert not [path for path in (node.root / "cluster" / kind).glob("*") if "konnectivity" in path.name]
    assert not node.path(node.plan.paths.tls).exists()
