"""Which metadata source an instance has, from its node.yaml: one table of kinds.

    metadata: {static: {file: /etc/bootbridge/instance.yaml}}
    metadata: {http: {url: "http://10.42.0.1:8080", caFile: …, seconds: 10}}
    metadata: {dns: {controlPlanes: cp.example, file: /etc/bootbridge/instance.yaml, seconds: 10}}

A further kind is a line in `KINDS` and the function that reads its settings.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bootbridge.common.fields import Fields
from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import Metadata
from bootbridge.metadata.dns import LOOKUP_SECONDS, DnsMetadata
from bootbridge.metadata.http import ANSWER_SECONDS, HttpMetadata
from bootbridge.metadata.static import StaticMetadata


def metadata_from(document: Any, subject: str = "metadata") -> Metadata:
    """The source that the document names; exactly one."""
    known = ", ".join(KINDS)
    if not isinstance(document, Mapping) or len(document) != 1:
        raise OperatorError("names no single source", subject=subject, hint=f"one of: {known}")
    ((kind, settings),) = document.items()
    if kind not in KINDS:
        raise OperatorError(f"unknown source {kind!r}", subject=subject, hint=f"one of: {known}")
    return KINDS[kind](Fields(settings, f"{subject}.{kind}"))


def _static(fields: Fields) -> Metadata:
    path = fields.path("file")
    fields.no_others()
    return StaticMetadata(path)


def _http(fields: Fields) -> Metadata:
    url, seconds, authority = (
        fields.text("url", required=True),
        fields.seconds("seconds", ANSWER_SECONDS),
        fields.text("caFile"),
    )
    fields.no_others()
    try:
        return HttpMetadata(url, answer_seconds=seconds, tls=_trust(authority, fields.name("caFile")))
    except OperatorError as error:
        raise OperatorError(str(error), subject=error.subject or fields.name("url")) from None


def _dns(fields: Fields) -> Metadata:
    control_planes, path = fields.text("controlPlanes", required=True), fields.path("file")
    seconds = fields.seconds("seconds", LOOKUP_SECONDS)
    fields.no_others()
    return DnsMetadata(control_planes, StaticMetadata(path), lookup_seconds=seconds)


def _trust(path: str, subject: str) -> ssl.SSLContext | None:
    if not path:
        return None
    try:
        return ssl.create_default_context(cafile=Path(path))
    except OSError as error:
        raise OperatorError(f"cannot use {path}: {error.strerror or error}", subject=subject) from None


KINDS: Final[Mapping[str, Callable[[Fields], Metadata]]] = {"static": _static, "http": _http, "dns": _dns}
