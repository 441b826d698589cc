"""node.yaml: defaults, and what is built from the settings (errors: tests/documents)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bootbridge.errors import OperatorError
from bootbridge.node.configuration import NodeConfiguration, configuration_from, read_configuration
from bootbridge.node.kubeadm.kubelet_service import KubeletCommands, systemd_kubelet
from bootbridge.trust.authority import Authority
from bootbridge.trust.evidence.configuration import IssuerSettings, TokenIssuerSettings
from bootbridge.trust.measurement import FileRegister
from bootbridge.trust.tpm.register import TpmRegister

MINIMAL: dict[str, Any] = {
    "metadata": {"static": {"file": "/etc/bootbridge/instance.yaml"}},
    "evidence": {"tpm": {"device": "unix:/run/swtpm/tpm.sock"}},
}


def configured(**changes: Any) -> NodeConfiguration:
    return configuration_from({**MINIMAL, **changes})


def test_metadata_and_evidence_are_the_only_required_fields() -> None:
    configuration = configured()
    settings = configuration.settings
    assert (settings.init.host, settings.init.port, settings.join_service.port) == ("", 9000, 30090)
    assert configuration.kubelet == systemd_kubelet()
    assert configuration.kubelet_unit == "kubelet.service"
    assert str(settings.run) == "/run/bootbridge-node"
    assert str(settings.state) == "/var/lib/bootbridge/node/state.json"
    assert configuration.join_verifiers is None


@pytest.mark.parametrize("evidence", [None, {}])
def test_empty_evidence_of_the_join_service_does_not_accept_any_peer(evidence: object) -> None:
    assert configured(joinService={"evidence": evidence}).join_verifiers is None


def test_evidence_none_accepts_any_join_service() -> None:
    assert configured(joinService={"evidence": "none"}).join_verifiers == ()


def test_the_register_is_a_pcr_of_the_tpm_that_issues_evidence() -> None:
    register = configured().register
    assert isinstance(register, TpmRegister)
    assert repr(register) == "<TpmRegister 15 of unix:/run/swtpm/tpm.sock>"


def test_without_a_tpm_the_register_is_a_file() -> None:
    register = configured(register="/run/bootbridge-node/register").register
    assert isinstance(register, FileRegister)


def test_evidence_of_the_join_service_is_built_into_verifiers() -> None:
    authority = Authority.create("machines").cert_pem.decode()
    configuration = configured(joinService={"port": 4433, "evidence": {"x509": {"cas": authority}}})
    assert [verifier.kind for verifier in configuration.join_verifiers or ()] == ["x509"]
    assert configuration.settings.join_service.port == 4433


def test_the_kubelet_can_be_started_by_commands_or_not_at_all() -> None:
    assert configured(kubelet="none").kubelet == KubeletCommands(())
    assert configured(kubelet="none").kubelet_unit == ""
    commanded = configured(kubelet={"start": ["sv", "up", "kubelet"], "stop": ["sv", "down", "kubelet"]})
    assert commanded.kubelet == KubeletCommands(("sv", "up", "kubelet"), ("sv", "down", "kubelet"))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"evidence": {"tpm": {"device": "usb"}}}, "evidence.tpm.device: invalid TPM address 'usb'"),
        ({"evidence": {"token": {"file": "/none"}}}, "evidence.token.file: cannot read /none"),
        ({"joinService": {"evidence": {"x509": {"cas": "x"}}}}, "joinService.evidence.x509.cas: "),
        ({"metadata": {"http": {"url": "10.0.0.1"}}}, "metadata.http.url: "),
    ],
)
def test_an_error_while_building_names_the_file_and_the_field(
    tmp_path: Path, changes: dict[str, Any], error: str
) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(json.dumps({**MINIMAL, **changes}))
    with pytest.raises(OperatorError) as raised:
        read_configuration(path)
    assert str(raised.value).startswith(f"{path}: {error}")


def test_a_missing_file_is_an_error_of_the_flag(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="--config: cannot read"):
        read_configuration(tmp_path / "node.yaml")


def test_a_configuration_shows_no_secret() -> None:
    secret = "0123456789abcdef0123456789abcdef"
    configuration = configured()
    evidence = IssuerSettings(token=TokenIssuerSettings(secret))
    inline = replace(configuration, settings=replace(configuration.settings, evidence=evidence))
    assert secret not in repr(inline)
