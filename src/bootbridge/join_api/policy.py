"""What an operator allows, as one document in the ConfigMap `bootbridge-join-policy`.

    evidence:                     # what a caller must prove, by kind (trust/evidence/configuration.py)
      tpm: {measurements: {"4": "9f…"}, endorsementCAs: "-----BEGIN…"}
    instances:                    # who may call
      - {name: worker-0, role: worker, addresses: [10.0.0.5], identity: "sha256:…", providerID: "…"}
    inventory: {http: {url: …}}   # instead of `instances`: a metadata service (node/metadata)
    roles: [worker, control-plane]
    ticket: {tokenSeconds: 900, certificateDays: 365, controlPlaneJoinSeconds: 600}
    cluster:                      # filled in by the init
      {kubernetesVersion: v1.36.3, apiServerEndpoint: "10.0.0.2:6443", components: […], criSocket: "unix://…"}

Register 15 is not the operator's to measure: it says whether an instance is locked, and the join service
judges it for each call (`claims`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.common.fields import Fields
from bootbridge.common.yaml_text import YAML_ERRORS
from bootbridge.errors import OperatorError
from bootbridge.join_api.cluster_spec import ClusterSpec, families_of
from bootbridge.join_api.components import Component
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.instance_documents import instance_from

POLICY_KEY: Final = "policy.json"
LOCK_REGISTER: Final = "15"
TOKEN_SECONDS_MAX: Final = 60 * 60
CERTIFICATE_DAYS_MAX: Final = 3650
CONTROL_PLANE_JOIN_SECONDS_MAX: Final = 60 * 60
INSTANCE_FIELDS: Final = frozenset(("name", "role", "addresses", "identity", "providerID"))


@dataclass(frozen=True)
class TicketSettings:
    # A ticket is used within seconds; a token that lies about for longer only helps its thief.
    token_seconds: int = 15 * 60
    certificate_days: int = 365
    # How long one control plane may keep the others waiting.
    control_plane_join_seconds: int = 10 * 60


@dataclass(frozen=True)
class ClusterFacts:
    """What every ticket says about the cluster."""

    kubernetes_version: str
    api_server_endpoint: str
    components: tuple[Component, ...] = ()
    cri_socket: str = ""
    ignore_preflight_errors: tuple[str, ...] = ()
    # Say which of a machine's addresses its kubelet goes by, on a joining node as on the first.
    service_subnets: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: ClusterSpec, api_server_endpoint: str) -> ClusterFacts:
        """As the init knows them; the endpoint is host:port, whatever the spec left open."""
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

    @property
    def document(self) -> dict[str, Any]:
        return {
            "kubernetesVersion": self.kubernetes_version,
            "apiServerEndpoint": self.api_server_endpoint,
            "components": [each.document for each in self.components],
            "criSocket": self.cri_socket,
            "ignorePreflightErrors": list(self.ignore_preflight_errors),
            "serviceSubnets": list(self.service_subnets),
        }


@dataclass(frozen=True)
class JoinPolicy:
    # Kept as documents: what they become lives in other rooms, and may be secret.
    evidence: Mapping[str, Any] = field(repr=False)
    cluster: ClusterFacts
    instances: tuple[Instance, ...] = ()
    inventory: Mapping[str, Any] = field(default_factory=dict, repr=False)
    roles: frozenset[Role] = frozenset(Role)
    ticket: TicketSettings = TicketSettings()


def parse_policy(text: str | bytes, subject: str = POLICY_KEY) -> JoinPolicy:
    """From JSON or YAML, whole or not at all."""
    return load_policy(_document(text, subject), subject)


def with_cluster(text: str | bytes, cluster: ClusterFacts, subject: str = "join policy") -> bytes:
    """A user's document and the facts of the cluster that the init made, as the ConfigMap holds them."""
    document = {**_document(text, subject), "cluster": cluster.document}
    load_policy(document, subject)
    try:
        return json.dumps(document, indent=2, sort_keys=True).encode()
    except (TypeError, ValueError):
        hint = "put dates and the like between quotes"
        raise OperatorError("holds what JSON cannot say", subject=subject, hint=hint) from None


def load_policy(document: Mapping[str, Any], subject: str = POLICY_KEY) -> JoinPolicy:
    root = Fields(document, subject)
    policy = JoinPolicy(
        evidence=_evidence(root.any("evidence", {}), root.name("evidence")),
        instances=_instances(root.any("instances", []), root.name("instances")),
        inventory=_mapping(root.any("inventory", {}), root.name("inventory")),
        roles=frozenset(_role(each, root.name("roles")) for each in root.texts("roles", tuple(Role))),
        ticket=_ticket(root.within("ticket")),
        cluster=_cluster(root.within("cluster")),
    )
    root.no_others()
    if bool(policy.instances) == bool(policy.inventory):
        raise OperatorError("either instances or an inventory must say who may call", subject=subject)
    return policy


def _document(text: str | bytes, subject: str) -> Mapping[str, Any]:
    try:
        try:
            document = json.loads(text)  # a thousand instances are long work for YAML
        except ValueError:
            document = yaml.safe_load(text)
    except YAML_ERRORS:
        raise OperatorError("is neither JSON nor YAML", subject=subject) from None
    return _mapping(document, subject)


def _evidence(document: Any, subject: str) -> Mapping[str, Any]:
    if not _mapping(document, subject):
        raise OperatorError("no kind of evidence is accepted", subject=subject, hint="name at least one")
    tpm = document.get("tpm")
    if not isinstance(tpm, Mapping) or not isinstance(tpm.get("measurements"), Mapping):
        return document
    measurements = {str(index): value for index, value in tpm["measurements"].items()}
    wanted = measurements.pop(LOCK_REGISTER, "")
    expected = wanted.get("expected", "") if isinstance(wanted, Mapping) else wanted
    if str(expected).strip("0"):
        raise OperatorError(
            "register 15 says whether an instance is locked, and the join service judges it itself",
            subject=f"{subject}.tpm.measurements",
            hint="leave 15 out",
        )
    return {**document, "tpm": {**tpm, "measurements": measurements}}


def _instances(document: Any, subject: str) -> tuple[Instance, ...]:
    if not isinstance(document, list):
        raise OperatorError("is not a list", subject=subject)
    instances = tuple(_instance(each, f"{subject}[{place}]") for place, each in enumerate(document))
    for what in ("name", "identity"):
        values = [value for each in instances if (value := getattr(each, what))]
        if twins := [value for value, times in Counter(values).items() if times > 1]:
            raise OperatorError(f"two instances have the {what} {twins[0]}", subject=subject)
    return instances


def _instance(document: Any, subject: str) -> Instance:
    # A misspelt `identity` would quietly be an instance that any key may claim.
    if unknown := set(map(str, _mapping(document, subject))) - INSTANCE_FIELDS:
        raise OperatorError(f"unknown field {min(unknown)!r}", subject=subject)
    try:
        instance = instance_from(document, subject)
    except MetadataUnavailable as error:
        raise OperatorError(str(error)) from None
    if not instance.addresses:
        raise OperatorError("an instance needs an address", subject=f"{subject}.addresses")
    return instance


def ticket_settings(text: str | bytes, subject: str = POLICY_KEY) -> TicketSettings:
    """Of a user's document, which need not say anything about its cluster yet."""
    return _ticket(Fields(_document(text, subject), subject).within("ticket"))


def _ticket(fields: Fields) -> TicketSettings:
    default = TicketSettings()
    settings = TicketSettings(
        _number(fields, "tokenSeconds", default.token_seconds, 60, TOKEN_SECONDS_MAX),
        _number(fields, "certificateDays", default.certificate_days, 1, CERTIFICATE_DAYS_MAX),
        _number(
            fields,
            "controlPlaneJoinSeconds",
            default.control_plane_join_seconds,
            60,
            CONTROL_PLANE_JOIN_SECONDS_MAX,
        ),
    )
    fields.no_others()
    return settings


def _cluster(fields: Fields) -> ClusterFacts:
    endpoint = fields.text("apiServerEndpoint", required=True)
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        raise OperatorError(f"{endpoint!r} is not host:port", subject=fields.name("apiServerEndpoint"))
    components = fields.any("components", [])
    if not isinstance(components, list):
        raise OperatorError("is not a list", subject=fields.name("components"))
    facts = ClusterFacts(
        fields.text("kubernetesVersion", required=True),
        endpoint,
        tuple(Component.load(each, fields.name("components")) for each in components),
        fields.text("criSocket"),
        fields.texts("ignorePreflightErrors"),
        fields.texts("serviceSubnets"),
    )
    _check_subnets(facts.service_subnets, fields.name("serviceSubnets"))
    fields.no_others()
    return facts


def _check_subnets(subnets: Iterable[str], subject: str) -> None:
    try:
        families_of(subnets)
    except ValueError as error:
        raise OperatorError(str(error), subject=subject) from None


def _role(text: str, subject: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        known = ", ".join(Role)
        raise OperatorError(f"unknown role {text!r}", subject=subject, hint=f"known are: {known}") from None


def _mapping(value: Any, subject: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise OperatorError("is not a mapping", subject=subject)
    return value


def _number(fields: Fields, name: str, default: int, least: int, most: int) -> int:
    value = fields.any(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise OperatorError(f"is not a number from {least} to {most}", subject=fields.name(name))
    return value
