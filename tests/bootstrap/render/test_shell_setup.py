"""Runs the shell's stages before cluster-bootstrap, at the first start and at later ones."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml

from bootbridge.bootstrap.machine import certificates
from bootbridge.bootstrap.machine.node_values import node_values
from bootbridge.bootstrap.plan.plan import Networking, Plan, ProxyImage
from bootbridge.bootstrap.render import manifests
from bootbridge.common.files import write_file
from bootbridge.trust.authority import Authority
from tests.bootstrap.render.fake_programs import PAYLOAD_IMAGE
from tests.bootstrap.render.shell_node import Network, Node, needs_node
from tests.support.process_program import until

# The background process ends: the API server accepts the objects, or the clock reaches its limit.
ALL = "bootbridge_setup\nbootbridge_manifests\nwait"
STAGES = ["konnectivity-certs", "konnectivity-server-bootstrap", "konnectivity-agent-manifest"]
QUICK = Plan(key_kind="ecdsa-p256")
pytestmark = needs_node


@pytest.fixture
def network(network: Network) -> Network:
    network.interface("nic0", "10.0.0.5/24", "fd00:1::5/64")
    network.ip("route add default via 10.0.0.1")
    return network


@pytest.fixture
def node(tmp_path: Path, network: Network) -> Node:
    return Node(tmp_path / "node", network, QUICK)


def both_ends(stages: list[str]) -> list[str]:
    return [f"{end} {stage}" for stage in stages for end in ("start", "success")]


# --- first start


def test_shell_and_python_render_the_same_manifests(node: Node) -> None:
    """With the node's image, address and certificates."""
    node.run_checked(ALL)
    bundle = certificates.load(node.root, node.plan)
    assert bundle is not None
    pems = {"ca": bundle.ca_cert, "agent_cert": bundle.agent.cert_pem, "agent_key": bundle.agent.key_pem}
    values = node_values(node.plan, PAYLOAD_IMAGE, (ip_address("10.0.0.5"),), **pems)
    paths = node.plan.paths
    wanted = {
        paths.server_pod: manifests.server_pod(node.plan, values),
        paths.namespace_manifest: manifests.namespace(node.plan),
        paths.secret_manifest: manifests.agent_secret(node.plan, values),
        paths.daemonset_manifest: manifests.agent_daemonset(node.plan, values),
    }

    for path, manifest in wanted.items():
        assert yaml.safe_load(node.path(path).read_text()) == manifest, path


def test_agents_get_all_addresses_and_go_agents_the_primary_one(tmp_path: Path, network: Network) -> None:
    """On dual stack. The certificate contains both addresses."""
    networks = Networking(
        machine=(ip_network("10.0.0.0/16"), ip_network("fd00:1::/48")),
        service=(ip_network("172.30.0.0/16"), ip_network("fd02::/112")),
    )
    hosts = []
    for kind in ("bootbridge", "konnectivity"):
        plan = replace(QUICK, networks=networks, image=ProxyImage(kind, "registry.example/proxy:1"))  # type: ignore[arg-type]
        node = Node(tmp_path / kind, network, plan)
        node.run_checked(ALL)
        bundle = certificates.load(node.root, plan)
        addresses = (ip_address("10.0.0.5"), ip_address("fd00:1::5"))
        assert certificates.renewal_reason(bundle, plan, addresses, datetime.now(UTC)) == ""
        daemonset = yaml.safe_load(node.path(plan.paths.daemonset_manifest).read_text())
        container = daemonset["spec"]["template"]["spec"]["containers"][0]
        hosts += [arg for arg in container["args"] if arg.startswith("--proxy-server-host=")]
        assert container["image"] == "registry.example/proxy:1"
        assert not [call for call in node.calls("podman") if " image " in call]
        network.end_processes()

    assert hosts == ["--proxy-server-host=10.0.0.5,fd00:1::5", "--proxy-server-host=10.0.0.5"]


def test_stages_are_recorded_in_order(node: Node) -> None:
    """The installer's gather names the stage that failed."""
    node.run_checked(ALL)

    assert node.records() == both_ends(STAGES)


def test_the_image_lookup_is_cached(node: Node) -> None:
    """Each lookup starts a container; so do the questions which flags the two programs know."""
    node.run_checked(ALL)
    node.run_checked(ALL)

    calls = node.calls("podman")
    assert len([call for call in calls if " image " in call]) == 1
    assert len([call for call in calls if call.endswith(" --help")]) == 2
    assert len(calls) == 3


def test_it_runs_without_the_installers_library(node: Node) -> None:
    """Then no stages are recorded."""
    done = node.run(f". /usr/local/bin/release-image.sh; . {node.plan.paths.hook_script}; {ALL}")

    assert done.returncode == 0, done.stderr
    assert node.records() == []
    assert node.path(node.plan.paths.daemonset_manifest).exists()


def test_no_key_is_logged_or_passed_as_an_argument(node: Node) -> None:
    """Neither PEM nor base64 of a key is in the journal or in the arguments of a program."""
    node.record_arguments()
    logged = node.run_checked(ALL)
    shown = logged + (node.root / "cluster/arguments").read_text()
    paths = node.plan.paths

    for key in (paths.server_key, paths.agent_key):
        pem = node.path(key).read_bytes()
        secrets = [*pem.decode().splitlines()[1:-1], base64.b64encode(pem).decode()[40:120]]
        assert not [secret for secret in secrets if secret in shown]
    assert "genpkey" in shown


# --- later starts


def test_a_second_start_changes_nothing(node: Node) -> None:
    """No file and no stage: systemd restarts bootkube.sh whenever it fails."""
    node.run_checked(ALL)
    before, records = node.files(), node.records()

    node.run_checked(ALL)

    assert node.files() == before
    assert node.records() == records


def test_a_changed_address_renews_certificates_and_manifests(node: Node, network: Network) -> None:
    """All of them. The stages are recorded again."""
    node.run_checked(ALL)
    before = node.files()
    network.ip("addr del 10.0.0.5/24 dev nic0")
    network.address("nic0", "10.0.0.77/24")

    logged = node.run_checked(ALL)

    paths = node.plan.paths
    renewed = [paths.ca_cert, paths.server_cert, paths.server_key, paths.agent_cert, paths.agent_key]
    renewed += [paths.server_pod, paths.secret_manifest, paths.daemonset_manifest]
    after = node.files()
    assert [path for path in renewed if after[path] == before[path]] == []
    assert "10.0.0.77" in after[paths.daemonset_manifest][1].decode()
    assert "addresses changed" in logged
    assert node.records() == both_ends(STAGES) * 2


@pytest.mark.parametrize("left", [timedelta(hours=-1), timedelta(hours=1)], ids=["expired", "nearly expired"])
def test_expiring_certificates_are_renewed_with_the_manifests(node: Node, left: timedelta) -> None:
    """When less than a quarter of the validity is left."""
    node.run_checked(ALL)
    authority = Authority.create("bootbridge-signer", validity=left)
    server = authority.issue_server(["10.0.0.5"], validity=left)
    agent = authority.issue_client("konnectivity-agent", validity=left)
    old = certificates.files(node.plan, certificates.CertificateSet(authority.cert_pem, server, agent))
    for path, asset in old.items():
        write_file(node.path(path), asset)

    logged = node.run_checked(ALL)

    secret = yaml.safe_load(node.path(node.plan.paths.secret_manifest).read_text())
    assert "expire" in logged
    assert all(node.path(path).read_bytes() != asset.data for path, asset in old.items())
    agent_key = node.path(node.plan.paths.agent_key).read_bytes()
    assert base64.b64decode(secret["data"]["tls.key"]) == agent_key


def test_new_certificates_replace_existing_objects(node: Node, network: Network) -> None:
    """After a failed attempt they would otherwise keep the old ones."""
    node.run_checked(ALL)
    paths = node.plan.paths
    existing = {
        "secret": (node.root / "cluster/secret" / node.plan.secret_name, paths.secret_manifest),
        "daemonset": (node.root / "cluster/daemonset" / node.plan.daemonset_name, paths.daemonset_manifest),
    }
    for place, manifest in existing.values():
        place.write_bytes(node.path(manifest).read_bytes())
    network.ip("addr del 10.0.0.5/24 dev nic0")
    network.address("nic0", "10.0.0.77/24")

    node.run_checked(ALL + "\nwait")

    for place, manifest in existing.values():
        assert place.read_bytes() == node.path(manifest).read_bytes()
        assert place.read_bytes()


def test_a_missing_file_is_written_again(node: Node) -> None:
    """Although the stage's marker exists."""
    node.run_checked(ALL)
    before = node.files()
    paths = node.plan.paths
    for path in (paths.server_pod, paths.egress_config, paths.secret_manifest):
        node.path(path).unlink()

    node.run_checked(ALL)

    assert node.files() == before


def test_an_edited_egress_configuration_is_kept(node: Node) -> None:
    """An operator may edit every rendered file before the boot."""
    config = node.path(node.plan.paths.egress_config)
    config.write_text("# mine\n")

    node.run_checked(ALL)

    assert config.read_text() == "# mine\n"


# --- failures


def test_an_interrupted_run_deletes_the_ca_key(node: Node) -> None:
    """After SIGTERM while signing. The next run works."""
    (node.root / "tools/openssl").unlink()
    slow = node.root / "tools/openssl"
    slow.write_text(
        "#!/usr/bin/bash\n"
        "if [[ $1 == ca ]]; then : >/cluster/signing; sleep 600 & wait; fi\n"
        'exec /usr/bin/openssl "$@"\n'
    )
    slow.chmod(0o755)
    running = subprocess.Popen(
        node.command(f". {node.plan.paths.hook_script}; bootbridge_setup"), start_new_session=True
    )
    until(lambda: (node.root / "cluster/signing").exists(), "openssl signs")
    assert [path.name for path in (node.root / "run").glob("bootbridge.*/*.key")] == ["ca.key"]

    os.killpg(running.pid, signal.SIGTERM)

    assert running.wait(20) != 0
    until(lambda: not list((node.root / "run").iterdir()), "the CA key is deleted")
    slow.unlink()
    node.offer(["openssl"])
    (node.root / "cluster/signing").unlink()
    node.run_checked(ALL)


def test_the_next_run_deletes_what_a_killed_run_left(node: Node) -> None:
    """Such as a CA key after SIGKILL or a power failure."""
    left = node.root / "run/bootbridge.abcdefgh"
    left.mkdir()
    (left / "ca.key").write_text("PRIVATE KEY")
    (node.path(node.plan.paths.static_pods) / ".bootbridge.abcdefgh").write_text("half")

    node.run_checked(ALL)

    assert not left.exists()
    assert not list(node.path(node.plan.paths.static_pods).glob(".*"))


def test_a_failing_openssl_fails_the_stage(node: Node) -> None:
    """Its output is on stderr, and no key is left."""
    (node.root / "tools/openssl").unlink()
    broken = node.root / "tools/openssl"
    broken.write_text("#!/usr/bin/bash\necho 'unable to write random state' >&2\nexit 1\n")
    broken.chmod(0o755)

    done = node.bootkube(ALL)

    assert done.returncode == 1
    assert "unable to write random state" in done.stderr
    assert "openssl failed to create the certificates" in done.stderr
    assert node.records() == ["start konnectivity-certs", "failure konnectivity-certs"]
    assert not list((node.root / "run").iterdir())


def test_a_node_without_openssl_uses_the_payloads(node: Node) -> None:
    """In a container without network."""
    node.without("openssl")
    (node.root / "cluster/payload-has-openssl").touch()

    logged = node.run_checked(ALL)

    bundle = certificates.load(node.root, node.plan)
    assert certificates.renewal_reason(bundle, node.plan, (ip_address("10.0.0.5"),), datetime.now(UTC)) == ""
    assert "openssl not found on this node" in logged
    runs = [call for call in node.calls("podman") if "--entrypoint=openssl" in call]
    assert runs
    assert all("--net=none" in call for call in runs)


def test_no_openssl_anywhere_fails_the_stage(node: Node) -> None:
    """The error names the images that were searched."""
    node.without("openssl")

    done = node.bootkube(ALL)

    assert done.returncode == 1
    assert (
        "command not found: openssl, neither on this node nor in the payload images cli tools" in done.stderr
    )
    assert node.records()[-1] == "failure konnectivity-certs"


def test_no_address_fails_the_certificates_stage(node: Node, network: Network) -> None:
    """The error lists the addresses found, and names the variable."""
    network.ip("addr flush dev nic0")

    done = node.bootkube(ALL)

    assert done.returncode == 1
    assert "found: 127.0.0.1/8 on lo" in done.stderr
    assert "OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP" in done.stderr
    assert node.records() == ["start konnectivity-certs", "failure konnectivity-certs"]


def test_a_payload_without_the_image_fails_the_server_stage(node: Node) -> None:
    """As in releases before 4.11."""
    (node.root / "cluster/payload-is-old").touch()

    done = node.bootkube(ALL)

    assert done.returncode == 1
    assert (
        "image apiserver-network-proxy not found in the release payload (releases before 4.11" in done.stderr
    )
    assert node.records()[-1] == "failure konnectivity-server-bootstrap"
    assert not node.path(node.plan.paths.server_pod).exists()


# --- the kube-apiserver's configuration


def test_a_missing_egress_argument_is_added(node: Node) -> None:
    """The rest of the configuration stays unchanged. The next start adds nothing."""
    node.render_apiserver(with_egress=False)
    config = node.path(node.plan.paths.apiserver_config)
    before = yaml.safe_load(config.read_text())

    logged = node.run_checked(ALL)
    after = yaml.safe_load(config.read_text())

    value = after["apiServerArguments"].pop("egress-selector-config-file")
    assert value == [node.plan.paths.egress_config_seen_by_apiserver]
    assert after == before
    assert "adding egress-selector-config-file" in logged
    assert "adding egress" not in node.run_checked(ALL)


def test_an_unknown_configuration_format_stops_the_bootstrap(node: Node) -> None:
    """Otherwise webhooks would time out later."""
    node.path(node.plan.paths.apiserver_config).write_text("kind: KubeAPIServerConfig\n")

    done = node.bootkube(ALL)

    assert done.returncode == 1
    assert "apiServerArguments not found" in done.stderr
    assert node.records()[-1] == "failure konnectivity-agent-manifest"


def test_a_missing_configuration_stops_the_bootstrap(node: Node) -> None:
    """The error names the file."""
    node.path(node.plan.paths.apiserver_config).unlink()

    done = node.bootkube(ALL)

    assert done.returncode == 1
    assert f"file not found: {node.plan.paths.apiserver_config}" in done.stderr


def test_another_egress_configuration_stops_the_bootstrap(node: Node) -> None:
    """It is not changed."""
    config = node.path(node.plan.paths.apiserver_config)
    config.write_text('apiServerArguments:\n  egress-selector-config-file:\n    - "/other.yaml"\nkind: X\n')
    before = config.read_bytes()

    done = node.bootkube(ALL)

    assert done.returncode == 1
    assert "another egress configuration: /other.yaml" in done.stderr
    assert config.read_bytes() == before
