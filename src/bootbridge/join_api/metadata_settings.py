"""Which metadata source an instance or an inventory uses; exactly one.

    {static: {file: /etc/bootbridge/instance.yaml}}
    {http: {url: "http://10.42.0.1:8080", caFile: …, seconds: 10}}
    {dns: {controlPlanes: cp.example, file: /etc/bootbridge/instance.yaml, seconds: 10}}

`metadata.configuration` builds the source.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from bootbridge.common.documents import CONFIG, AbsolutePath, FieldError, NonEmpty, Seconds

ANSWER_SECONDS: Final = 10.0
LOOKUP_SECONDS: Final = 10.0


@dataclass(frozen=True)
class StaticSettings:
    file: AbsolutePath
    """YAML or JSON file (`bootbridge schema instance`)."""


@dataclass(frozen=True)
class HttpSettings:
    url: NonEmpty
    """http or https URL of the service, without user, query and fragment."""
    ca_file: str = ""
    """File with the authorities that sign the service's certificate, as PEM; empty: those of the system."""
    seconds: Seconds = ANSWER_SECONDS
    """Time limit of a request."""


@dataclass(frozen=True)
class DnsSettings:
    control_planes: NonEmpty
    """Name whose addresses are those of the control planes."""
    file: AbsolutePath
    """File with everything but the peers (`bootbridge schema instance`)."""
    seconds: Seconds = LOOKUP_SECONDS
    """Time limit of a lookup."""


@dataclass(frozen=True)
class MetadataSettings:
    __pydantic_config__ = CONFIG

    static: StaticSettings | None = None
    """A file."""
    http: HttpSettings | None = None
    """An HTTP service of the infrastructure."""
    dns: DnsSettings | None = None
    """A name in DNS for the peers, and a file for the rest."""

    def __post_init__(self) -> None:
        if sum(getattr(self, each.name) is not None for each in fields(self)) != 1:
            known = ", ".join(each.name for each in fields(self))
            raise FieldError("exactly one source is required", hint=f"one of: {known}")
