"""policy.yaml: which instances may join, and what they must prove.

    evidence:
      tpm: {measurements: {"4": "9f…"}, endorsementCAs: "-----BEGIN…"}
    instances:
      - {name: worker-0, role: worker, addresses: [10.0.0.5], identity: "tpm:sha256:…", providerID: "…"}
    inventory: {http: {url: …}}   # instead of `instances`
    roles: [worker, control-plane]
    roleEvidence: {control-plane: [tpm]}
    ticket: {tokenSeconds: 900, certificateDays: 365, controlPlaneJoinSeconds: 600}

The init adds `cluster` and writes the document into the ConfigMap `bootbridge-join-policy`, from which the
join service reads it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from pydantic import Field

from bootbridge.common import documents
from bootbridge.common.documents import CONFIG, Cidr, FieldError, NonEmpty, checked, quoted
from bootbridge.join_api.cluster_spec import ClusterSpec, families_of
from bootbridge.join_api.components import ComponentSpec
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.metadata_settings import MetadataSettings
from bootbridge.trust.evidence.configuration import VerifierSettings, chosen_kinds
from bootbridge.trust.identity import KINDS_WITH_KEY, EvidenceKind

POLICY_KEY: Final = "policy.json"
LOCK_REGISTER: Final = "15"


@dataclass(frozen=True)
class TicketSettings:
    __pydantic_config__ = CONFIG

    # A ticket is used within seconds; a token that is valid for longer only helps its thief.
    token_seconds: Annotated[int, Field(ge=60, le=60 * 60)] = 15 * 60
    """How long the token in a ticket is valid."""
    certificate_days: Annotated[int, Field(ge=1, le=3650)] = 365
    """How long a kubelet's serving certificate is valid."""
    control_plane_join_seconds: Annotated[int, Field(ge=60, le=60 * 60)] = 10 * 60
    """How long one control plane may take to join while others wait."""


def _host_and_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise FieldError(f"invalid value {quoted(text)}", hint="must be host:port")
    return text


@dataclass(frozen=True)
class ClusterFacts:
    """What every ticket says about the cluster; written by the init."""

    kubernetes_version: NonEmpty
    """Kubernetes release of the cluster."""
    api_server_endpoint: Annotated[NonEmpty, checked(_host_and_port)]
    """host:port of the kube-apiserver."""
    components: tuple[ComponentSpec, ...] = ()
    """Programs that every node must have installed."""
    cri_socket: str = ""
    """Socket of the container runtime."""
    ignore_preflight_errors: tuple[str, ...] = ()
    """Checks of kubeadm that do not count."""
    service_subnets: tuple[Cidr, ...] = ()
    """CIDRs of the services; their families decide which of its addresses a node uses."""

    __pydantic_config__ = CONFIG

    @classmethod
    def of(cls, spec: ClusterSpec, api_server_endpoint: str) -> ClusterFacts:
        """As the init knows them; the endpoint is host:port, also where the spec leaves it open."""
        return cls(
            spec.kubernetes_version,
            api_server_endpoint,
            spec.components,
            spec.cri_socket,
            spec.ignore_preflight_errors,
            spec.service_subnets,
        )

    @property
    def families(self) -> tuple[int, ...]:
        return families_of(self.service_subnets)


def _without_lock_register(evidence: VerifierSettings) -> VerifierSettings:
    """Register 15 shows whether an instance is locked; the join service judges it for each request."""
    if not evidence:
        raise FieldError("at least one kind is required", hint="one of: tpm, x509, token")
    if not evidence.tpm or LOCK_REGISTER not in evidence.tpm.measurements:
        return evidence
    measurements = dict(evidence.tpm.measurements)
    wanted = measurements.pop(LOCK_REGISTER)
    if (wanted if isinstance(wanted, str) else wanted.expected).strip("0"):
        raise FieldError(
            "register 15 is checked by the join service itself",
            subject=f"tpm.measurements.{LOCK_REGISTER}",
            hint="leave 15 out",
        )
    return replace(evidence, tpm=replace(evidence.tpm, measurements=measurements))


def _distinct(instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
    for what in ("name", "identity"):
        values = [value for each in instances if (value := getattr(each, what))]
        if twins := [value for value, times in Counter(values).items() if times > 1]:
            raise FieldError(f"duplicate {what} {quoted(twins[0])}")
    return instances


def _addressed(instance: Instance) -> Instance:
    if not instance.addresses:
        raise FieldError("required field missing", subject="addresses")
    return instance


@dataclass(frozen=True)
class OperatorPolicy:
    """The policy as an operator writes it, before there is a cluster."""

    __pydantic_config__ = CONFIG

    evidence: Annotated[VerifierSettings, checked(_without_lock_register)] = field(repr=False)
    """What an instance must prove."""
    instances: Annotated[tuple[Annotated[Instance, checked(_addressed)], ...], checked(_distinct)] = ()
    """The instances that may join."""
    inventory: MetadataSettings | None = None
    """Instead of `instances`: the metadata source that lists them."""
    roles: frozenset[Role] = frozenset(Role)
    """Roles for which tickets are issued."""
    role_evidence: dict[Role, tuple[EvidenceKind, ...]] = field(default_factory=dict)
    """Kinds of evidence that earn a ticket for a role; by default tpm and x509 for control-plane, all kinds
    for worker. A token earns a control-plane ticket only if it is listed here."""
    ticket: TicketSettings = TicketSettings()
    """Limits of what a ticket holds."""

    def evidence_for(self, role: Role) -> tuple[EvidenceKind, ...]:
        """Returns the kinds that earn a ticket for this role."""
        default = KINDS_WITH_KEY if role is Role.CONTROL_PLANE else tuple(EvidenceKind)
        return self.role_evidence.get(role, default)

    def kind_problem(self, kind: str, role: Role) -> str:
        """Returns why this kind is not accepted for the role, with the line that accepts it; else nothing."""
        accepted = self.evidence_for(role)
        if kind in accepted:
            return ""
        kinds = ", ".join(each for each in self.evidence.kinds if each in accepted or each == kind)
        line = f"roleEvidence: {{{role}: [{kinds}]}}"
        return (
            f"{kind} evidence is not accepted for the role {role} "
            f"(to accept it, write in the join policy: {line})"
        )

    def __post_init__(self) -> None:
        self._require_verifiers()
        if bool(self.instances) == bool(self.inventory):
            raise FieldError("either instances or inventory is required, and not both")
        if self.inventory and self.inventory.dns:
            # A join service that is found by DNS still has to prove itself; an inventory is believed.
            raise FieldError(
                "DNS is not accepted: its answers would decide which instances are control planes",
                subject="inventory.dns",
                hint="list the instances, or use an http or static inventory",
            )

    def _require_verifiers(self) -> None:
        """A kind that is required of an instance or a role, and that no verifier checks, is an error."""
        required = [(f"roleEvidence.{role}", kinds) for role, kinds in self.role_evidence.items()]
        if empty := [subject for subject, kinds in required if not kinds]:
            hint = "list at least one kind; to issue no tickets for a role, leave it out of roles"
            raise FieldError("required field missing", subject=empty[0], hint=hint)
        required += [
            (f"instances[{place}].evidence", each.evidence) for place, each in enumerate(self.instances)
        ]
        for subject, kinds in required:
            if unknown := [kind for kind in kinds if kind not in self.evidence.kinds]:
                hint = f"add {unknown[0]} to evidence, or remove it here"
                raise FieldError(f"kind {unknown[0]} is not in evidence", subject=subject, hint=hint)


@dataclass(frozen=True)
class JoinPolicy(OperatorPolicy):
    """The policy as the join service reads it."""

    cluster: ClusterFacts = field(kw_only=True)
    """Facts of the cluster."""


def parse_policy(text: str | bytes, name: str = POLICY_KEY) -> JoinPolicy:
    """Loads JSON or YAML; `name` is the file in errors."""
    return load_policy(documents.parse(text, name), name)


def load_policy(document: Any, name: str = POLICY_KEY) -> JoinPolicy:
    return documents.convert(JoinPolicy, _normalised(document), name)


def load_operator_policy(text: str | bytes, name: str) -> tuple[OperatorPolicy, bytes]:
    """Loads an operator's document; returns it as JSON, too. Drops `cluster`: the init decides it."""
    document = documents.parse(text, name)
    if isinstance(document, dict):
        document.pop("cluster", None)
    policy = documents.convert(OperatorPolicy, _normalised(document), name)
    return policy, json.dumps(document).encode()


def check_policy(text: str | bytes, name: str = "join policy") -> None:
    """Checks an operator's document on the instance that starts an init; raises OperatorError.

    An inventory's files and services are those of the join service's machine, and are not looked for here.
    """
    policy, _ = load_operator_policy(text, name)
    policy.evidence.verifiers(f"{name}: evidence.", is_enrolled=lambda identity: False)


def with_cluster(text: str | bytes, cluster: ClusterFacts, name: str = "join policy") -> bytes:
    """Returns an operator's document and the facts of the new cluster, as the ConfigMap holds them."""
    document = documents.parse(text, name)
    if isinstance(document, Mapping):
        document = {**document, "cluster": documents.dump(cluster)}
    load_policy(document, name)
    return json.dumps(document, indent=2, sort_keys=True).encode()


def ticket_settings(text: str | bytes, name: str = POLICY_KEY) -> TicketSettings:
    """Loads only `ticket`."""
    document = documents.parse(text, name)
    ticket = document.get("ticket") if isinstance(document, Mapping) else None
    return documents.convert(TicketSettings, documents.without_nulls(ticket or {}), f"{name}: ticket")


def _normalised(document: Any) -> Any:
    """A field that is null is not given; a kind of evidence that is null has the default settings."""
    document = documents.without_nulls(document, keep=("evidence", "components"))
    if isinstance(document, dict) and "evidence" in document:
        document["evidence"] = chosen_kinds(document["evidence"])
    return document
