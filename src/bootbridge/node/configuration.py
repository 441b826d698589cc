"""node.yaml: what an instance knows about its environment. Everything about the cluster comes later.

    metadata: {static: {file: /etc/bootbridge/instance.yaml}}
    evidence: {tpm: {device: /dev/tpmrm0}}
    joinService: {evidence: {tpm: {…}}}

`NodeSettings` declares all fields; `NodeConfiguration` holds what is built from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from bootbridge.common import documents
from bootbridge.common.documents import CONFIG, AbsolutePath, FieldError, Port, Seconds, checked, quoted
from bootbridge.common.files import read_file
from bootbridge.join_api.instance import Metadata
from bootbridge.join_api.messages import JOIN_PORT
from bootbridge.join_api.metadata_settings import MetadataSettings
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
from bootbridge.trust.evidence.configuration import (
    IssuerSettings,
    TpmIssuerSettings,
    VerifierSettings,
    chosen_kinds,
)
from bootbridge.trust.measurement import FileRegister, Register
from bootbridge.trust.tpm.device import TpmDevice
from bootbridge.trust.tpm.register import TpmRegister


@dataclass(frozen=True)
class JoinServiceSettings:
    evidence: Literal["none"] | VerifierSettings = field(default_factory=VerifierSettings)
    """What the join service must prove; `none` accepts any peer. Required to join, not to enrol."""
    port: Port = JOIN_PORT
    """Port of the join service on the control planes."""


@dataclass(frozen=True)
class InitSettings:
    host: str = ""
    """Address on which `bootbridge node init` is served; empty: all addresses."""
    port: Port = INIT_PORT
    """Port on which `bootbridge node init` is served."""


@dataclass(frozen=True)
class KubeletSettings:
    start: tuple[str, ...] = ()
    """Command that starts the kubelet."""
    stop: tuple[str, ...] = ()
    """Command that stops the kubelet."""


def _register(text: str) -> str:
    if text != "tpm" and not text.startswith("/"):
        hint = "tpm, or a path on tmpfs such as /run/bootbridge-node/register"
        raise FieldError(f"invalid value {quoted(text)}", hint=hint)
    return text


@dataclass(frozen=True)
class NodeSettings:
    __pydantic_config__ = CONFIG

    metadata: MetadataSettings
    """Where the instance learns about itself and its peers."""
    evidence: IssuerSettings
    """How this instance proves itself."""
    register: Annotated[str, checked(_register)] = "tpm"
    """The register that locks the instance to a cluster: tpm, or a file on tmpfs where there is no TPM."""
    join_service: JoinServiceSettings = JoinServiceSettings()
    """How the join service is called."""
    init: InitSettings = InitSettings()
    """Where an init is accepted."""
    kubelet: Literal["systemd", "none"] | KubeletSettings = "systemd"
    """What starts the kubelet: systemd, another program (none), or commands."""
    kubeadm: str = "kubeadm"
    """The kubeadm program, by name or path."""
    root: AbsolutePath = Path("/")
    """Directory below which /etc/kubernetes and the other paths of the node are."""
    run: AbsolutePath = Path(bootstrap_record.DIRECTORY)
    """Directory for the records of this boot; must be on tmpfs."""
    state: AbsolutePath = Path(node_state.STATE)
    """File for what is kept over reboots."""
    linger_seconds: Seconds = LINGER_SECONDS
    """How long a finished init is kept for a user to fetch its result."""
    tunnel_quiet_seconds: Seconds = QUIET_SECONDS
    """How long all nodes must be Ready, and none new, before the tunnel is removed."""

    @property
    def tunnel_marker(self) -> Path:
        return self.state.with_name("tunnel-installed")


@dataclass(frozen=True)
class NodeConfiguration:
    settings: NodeSettings
    metadata: Metadata
    issuer: Issuer
    register: Register
    # What the join service must prove. Empty: any peer is accepted. None: not configured yet, as before the
    # control planes' keys are known.
    join_verifiers: tuple[Verifier, ...] | None
    kubelet: KubeletService
    # The systemd unit whose journal holds the kubelet's log; empty if systemd does not start it.
    kubelet_unit: str


def read_configuration(path: Path) -> NodeConfiguration:
    """Reads the file; raises OperatorError, with one line for each error."""
    return configuration_from(documents.parse(read_file(path, "--config"), str(path)), str(path))


def configuration_from(document: Any, name: str = "node.yaml") -> NodeConfiguration:
    """Builds the configuration from parsed JSON or YAML; `name` is the file in errors."""
    settings = documents.convert(NodeSettings, _normalised(document), name)
    verifiers = settings.join_service.evidence
    return NodeConfiguration(
        settings,
        metadata=metadata_from(settings.metadata, f"{name}: metadata"),
        issuer=settings.evidence.issuer(f"{name}: evidence."),
        register=_built_register(settings, name),
        join_verifiers=(
            () if verifiers == "none" else verifiers.verifiers(f"{name}: joinService.evidence.") or None
        ),
        kubelet=_built_kubelet(settings.kubelet),
        kubelet_unit=UNIT if settings.kubelet == "systemd" else "",
    )


def _normalised(document: Any) -> Any:
    """A field that is null is not given; a kind of evidence that is null has the default settings."""
    document = documents.without_nulls(document, keep=("evidence",))
    if isinstance(document, dict):
        for place in (document, document.get("joinService")):
            if isinstance(place, dict) and "evidence" in place:
                place["evidence"] = chosen_kinds(place["evidence"])
    return document


def _built_register(settings: NodeSettings, name: str) -> Register:
    if settings.register != "tpm":
        return FileRegister(settings.register)
    tpm = settings.evidence.tpm or TpmIssuerSettings()
    return TpmRegister(TpmDevice(tpm.device, f"{name}: evidence.tpm.device"))


def _built_kubelet(settings: str | KubeletSettings) -> KubeletService:
    if isinstance(settings, KubeletSettings):
        return KubeletCommands(settings.start, settings.stop)
    return systemd_kubelet() if settings == "systemd" else unmanaged_kubelet()
