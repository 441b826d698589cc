"""`bootbridge doctor` on an OpenShift bootstrap node: the kube-apiserver's settings are in a file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bootbridge.bootstrap.diagnose.doctor import DiagnosisContext, apiserver, processes
from bootbridge.bootstrap.diagnose.doctor.processes import NodeProcess
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.bootstrap.render import egress_selector, node_files
from bootbridge.common.files import Asset, write_file
from bootbridge.common.host import Host
from bootbridge.common.yaml_text import to_yaml
from tests.support.process_program import until

PLAN = Plan()
PATHS = PLAN.paths


@pytest.fixture
def hyperkube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeProcess]:
    """A process with the command line of the bootstrap kube-apiserver; others are hidden."""
    program = tmp_path / "hyperkube"
    program.write_text("import sys; sys.stdin.read()")
    config = "--openshift-config=/etc/kubernetes/config/kube-apiserver-config.yaml"
    argv = [sys.executable, str(program), "kube-apiserver", config, "--v=2"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE)
    found = until(
        lambda: next((p for p in processes.running() if p.pid == process.pid and config in p.words), None),
        "it runs",
    )
    named = processes.named
    monkeypatch.setattr(processes, "named", lambda name: [p for p in named(name) if p.pid == process.pid])
    yield found
    process.communicate()


@pytest.fixture
def context(tmp_path: Path, hyperkube: NodeProcess) -> DiagnosisContext:
    root = tmp_path / "root"
    for path, asset in node_files.node_files(PLAN).items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        write_file(place, asset)
    context = DiagnosisContext(InstallContext(PLAN, Host(root)))
    configure(context)
    return context


def configure(context: DiagnosisContext, **arguments: list[str] | None) -> None:
    settings: dict[str, list[str] | None] = {
        "egress-selector-config-file": [PATHS.egress_config_seen_by_apiserver],
        "enable-aggregator-routing": ["true"],
    }
    settings |= {name.replace("_", "-"): value for name, value in arguments.items()}
    document = {"apiServerArguments": {name: value for name, value in settings.items() if value is not None}}
    path = context.host.path(PLAN.paths.apiserver_config)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))


def test_the_settings_are_read_from_the_rendered_configuration(
    context: DiagnosisContext, hyperkube: NodeProcess
) -> None:
    """The command line only names that file."""
    assert context.apiserver == hyperkube
    for check in (
        apiserver.runs,
        apiserver.egress_selector,
        apiserver.endpoint_routing,
        apiserver.egress_config,
    ):
        assert check(context).verdict == "pass", check(context)


def test_an_override_that_is_not_in_effect(context: DiagnosisContext) -> None:
    """The fix restarts bootkube; `up` does not apply here."""
    configure(context, egress_selector_config_file=None)
    found = apiserver.egress_selector(context)
    assert "has no egress selector" in found.evidence
    assert "systemctl restart bootkube" in found.fix


def test_endpoint_routing_that_was_switched_off(context: DiagnosisContext) -> None:
    configure(context, enable_aggregator_routing=["false"])
    found = apiserver.endpoint_routing(context)
    assert "routing is false" in found.evidence
    assert "systemctl restart bootkube" in found.fix


def test_a_bootstrap_without_its_tunnel(context: DiagnosisContext) -> None:
    """The server did not answer in its stage, so the egress configuration routes directly."""
    context.host.write(PATHS.bypass, Asset(context.host.read(PATHS.egress_config) or b""))
    context.host.write(PATHS.egress_config, Asset(to_yaml(egress_selector.direct_configuration())))

    found = apiserver.egress_config(context)

    assert found.verdict == "fail"
    assert "the tunnel is not used: the server did not answer" in found.evidence
    assert "crictl logs" in found.fix
