"""node.yaml: what an instance is told about its own place. Everything about the cluster comes later.

    metadata: {static: {file: /etc/bootbridge/instance.yaml}}   # node/metadata/configuration.py
    evidence: {tpm: {device: /dev/tpmrm0}}     # what this instance proves (trust/evidence/configuration.py)
    register: tpm                              # or an absolute path on tmpfs, where there is no TPM
    joinService:
      evidence: {tpm: {…}}                     # what it must prove; none: any is believed
      port: 30090
    init: {host: "", port: 9000}               # where users call; an empty host is every address
    kubelet: systemd                           # or none, or {start: [command, …], stop: [command, …]}
    kubeadm: kubeadm                           # the program, by name or path
    root: /                                    # below which /etc/kubernetes and its like are
    run: /run/bootbridge-node                  # of this boot: must be on tmpfs
    state: /var/lib/bootbridge/node/state.json # over reboots
    lingerSeconds: 120                         # how long a finished init waits for a user to fetch its end
    tunnelQuietSeconds: 120                    # all nodes Ready and none new for so long: the bridge goes

Metadata, evidence and joinService.evidence have no default; an instance that is only to be enrolled can do
without the last. An unknown field is an error: a misspelt one would do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from bootbridge.common.fields import Fields
from bootbridge.common.files import read_file
from bootbridge.common.yaml_text import YAML_ERRORS
from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import Metadata
from bootbridge.join_api.messages import JOIN_PORT
from bootbridge.metadata.configuration import metadata_from
from bootbridge.node.init.messages import INIT_PORT
from bootbridge.node.init.server import LINGER_SECONDS
from bootbridge.node.init.tunnel_removal import QUIET_SECONDS
from bootbridge.node.kubeadm.kubelet_service import (
    UNIT,
    KubeletCommands,
    KubeletService,
    systemd_kubelet,
    unmanaged_kubelet,
)
from bootbridge.node.lock import bootstrap_record, node_state
from bootbridge.trust.evidence import Issuer, Verifier
from bootbridge.trust.evidence.configuration import DEFAULT_DEVICE, issuer_from, verifiers_from
from bootbridge.trust.measurement import FileRegister, Register
from bootbridge.trust.tpm.device import TpmDevice
from bootbridge.trust.tpm.register import TpmRegister

TPM: Final = "tpm"
SYSTEMD: Final = "systemd"
NONE: Final = "none"


@dataclass(frozen=True)
class NodeConfiguration:
    metadata: Metadata
    # The issuer and the document it comes from; the join service of this control plane shows the same.
    issuer: Issuer
    evidence: Mapping[str, Any] = field(repr=False)
    register: Register
    # What the join service must prove; empty: an operator wants whoever answers to be believed; None: nobody
    # has said yet, as before the control planes' keys are known.
    join_verifiers: tuple[Verifier, ...] | None
    join_port: int
    init_host: str
    init_port: int
    kubelet: KubeletService
    # Whose journal tells what the kubelet said; empty where it is not systemd's.
    kubelet_unit: str
    kubeadm: str
    root: Path
    run: Path
    state: Path
    linger_seconds: float
    tunnel_quiet_seconds: float

    @property
    def tunnel_marker(self) -> Path:
        return self.state.with_name("tunnel-installed")


def read_configuration(path: Path) -> NodeConfiguration:
    """From the file; every wrong field is one clear error that names it."""
    data = read_file(path, "--config")
    try:
        document = yaml.safe_load(data)
    except YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise OperatorError(f"no YAML{where}", subject=str(path)) from None
    if not isinstance(document, Mapping):
        raise OperatorError("holds no mapping", subject=str(path), hint="metadata and evidence are needed")
    try:
        return configuration_from(document)
    except OperatorError as error:
        raise OperatorError(str(error), subject=str(path)) from None


def configuration_from(document: Mapping[str, Any]) -> NodeConfiguration:
    root = Fields(document, "")
    evidence = root.any("evidence", {})
    join_service, init = root.within("joinService"), root.within("init")
    kubelet = root.any("kubelet", SYSTEMD)
    configuration = NodeConfiguration(
        metadata=metadata_from(root.any("metadata", {})),
        issuer=issuer_from(evidence, "evidence"),
        evidence=evidence,
        register=_register(root.text("register", TPM), evidence),
        join_verifiers=_verifiers(join_service),
        join_port=join_service.port("port", JOIN_PORT),
        init_host=init.text("host"),
        init_port=init.port("port", INIT_PORT),
        kubelet=_kubelet(kubelet),
        kubelet_unit=UNIT if kubelet == SYSTEMD else "",
        kubeadm=root.text("kubeadm", "kubeadm"),
        root=root.path("root", "/"),
        run=root.path("run", str(bootstrap_record.DIRECTORY)),
        state=root.path("state", str(node_state.STATE)),
        linger_seconds=root.seconds("lingerSeconds", LINGER_SECONDS),
        tunnel_quiet_seconds=root.seconds("tunnelQuietSeconds", QUIET_SECONDS),
    )
    for fields in (root, join_service, init):
        fields.no_others()
    return configuration


def _register(text: str, evidence: Any) -> Register:
    if text == TPM:
        settings = evidence.get(TPM) if isinstance(evidence, Mapping) else None
        device = settings.get("device") if isinstance(settings, Mapping) else None
        return TpmRegister(TpmDevice(device or DEFAULT_DEVICE, "evidence.tpm.device"))
    if not text.startswith("/"):
        hint = "tpm, or a path on tmpfs such as /run/bootbridge-node/register"
        raise OperatorError(f"{text!r} is no register", subject="register", hint=hint)
    return FileRegister(text)


def _verifiers(fields: Fields) -> tuple[Verifier, ...] | None:
    evidence = fields.any("evidence", {})
    if evidence == NONE:
        return ()
    return verifiers_from(evidence, fields.name("evidence")) or None


def _kubelet(value: Any) -> KubeletService:
    if value == SYSTEMD:
        return systemd_kubelet()
    if value == NONE:
        return unmanaged_kubelet()
    if not isinstance(value, Mapping):
        hint = "systemd, none, or {start: [command, …], stop: [command, …]}"
        raise OperatorError(f"{value!r} starts no kubelet", subject="kubelet", hint=hint)
    fields = Fields(value, "kubelet")
    kubelet = KubeletCommands(fields.texts("start"), fields.texts("stop"))
    fields.no_others()
    return kubelet
