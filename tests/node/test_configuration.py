"""node.yaml: what may be left out, and one clear error for each thing that is wrong."""

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
from bootbridge.trust.measurement import FileRegister
from bootbridge.trust.tpm.register import TpmRegister

LEAST: dict[str, Any] = {
    "metadata": {"static": {"file": "/etc/bootbridge/instance.yaml"}},
    "evidence": {"tpm": {"device": "unix:/run/swtpm/tpm.sock"}},
}


def configured(**changes: Any) -> NodeConfiguration:
    return configuration_from({**LEAST, **changes})


def test_metadata_and_evidence_are_enough() -> None:
    configuration = configured()
    assert (configuration.init_host, configuration.init_port, configuration.join_port) == ("", 9000, 30090)
    assert configuration.kubelet == systemd_kubelet()
    assert configuration.kubelet_unit == "kubelet.service"
    assert str(configuration.run) == "/run/bootbridge-node"
    assert str(configuration.state) == "/var/lib/bootbridge/node/state.json"
    assert configuration.join_verifiers is None, "nothing is believed that nobody has said"


@pytest.mark.parametrize("evidence", [None, {}])
def test_evidence_that_is_empty_is_not_a_wish_to_believe_everybody(evidence: object) -> None:
    assert configured(joinService={"evidence": evidence}).join_verifiers is None


def test_to_believe_whoever_answers_has_to_be_said() -> None:
    assert configured(joinService={"evidence": "none"}).join_verifiers == ()


def test_the_register_is_the_pcr_of_the_tpm_that_proves() -> None:
    register = configured().register
    assert isinstance(register, TpmRegister)
    assert repr(register) == "<TpmRegister 15 of unix:/run/swtpm/tpm.sock>"


def test_without_a_tpm_the_register_is_a_file() -> None:
    register = configured(register="/run/bootbridge-node/register").register
    assert isinstance(register, FileRegister)


def test_what_the_join_service_must_prove_is_a_policy() -> None:
    authority = Authority.create("machines").cert_pem.decode()
    configuration = configured(joinService={"port": 4433, "evidence": {"x509": {"cas": authority}}})
    assert [verifier.kind for verifier in configuration.join_verifiers or ()] == ["x509"]
    assert configuration.join_port == 4433


def test_somebody_else_may_start_the_kubelet() -> None:
    assert configured(kubelet="none").kubelet == KubeletCommands(())
    assert configured(kubelet="none").kubelet_unit == ""
    commanded = configured(kubelet={"start": ["sv", "up", "kubelet"], "stop": ["sv", "down", "kubelet"]})
    assert commanded.kubelet == KubeletCommands(("sv", "up", "kubelet"), ("sv", "down", "kubelet"))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"metadata": None}, "metadata: names no single source"),
        ({"metadata": {"static": {}}}, "metadata.static.file: is missing"),
        ({"evidence": None}, "evidence: 0 kinds"),
        ({"evidence": {"tpm": {}, "x509": {}}}, "evidence: 2 kinds"),
        ({"evidence": {"quantum": {}}}, "evidence: unknown kind.*'quantum'"),
        ({"evidence": {"tpm": {"device": "usb"}}}, "evidence.tpm.device: invalid TPM address 'usb'"),
        ({"register": "pcr"}, "'pcr' is no register"),
        ({"joinService": {"port": 70000}}, "joinService.port: is not a port"),
        ({"joinService": {"ports": 1}}, "joinService.ports: is unknown"),
        ({"joinService": {"evidence": {"x509": {}}}}, "joinService.evidence.x509.cas"),
        ({"init": []}, "init: is not a mapping"),
        ({"init": {"port": True}}, "init.port: is not a port"),
        ({"kubelet": "upstart"}, "'upstart' starts no kubelet"),
        ({"kubelet": {"start": "sv up"}}, "kubelet.start: is not a list of texts"),
        ({"kubeadm": 5}, "kubeadm: is not text"),
        ({"run": "here"}, "run: 'here' is not an absolute path"),
        ({"lingerSeconds": "long"}, "lingerSeconds: is not a number of seconds"),
        ({"tunnelQuietSeconds": "long"}, "tunnelQuietSeconds: is not a number of seconds"),
        ({"metdata": {}}, "metdata: is unknown .known are: .*metadata"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(OperatorError, match=error):
        configured(**changes)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "node.yaml: no YAML at line"),
        ("just text", "node.yaml: holds no mapping"),
        (json.dumps({**LEAST, "run": 1}), "node.yaml: run: is not text"),
    ],
)
def test_an_error_names_the_file(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    with pytest.raises(OperatorError, match=error):
        read_configuration(path)


def test_a_file_that_is_not_there_is_the_flags_fault(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="--config: cannot read"):
        read_configuration(tmp_path / "node.yaml")


def test_a_configuration_shows_no_secret() -> None:
    secret = "0123456789abcdef0123456789abcdef"
    assert secret not in repr(replace(configured(), evidence={"token": {"file": secret}}))
