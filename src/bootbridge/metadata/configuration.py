"""Builds the metadata source that an operator chose (`join_api.metadata_settings`)."""

from __future__ import annotations

import ssl

from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import Metadata
from bootbridge.join_api.metadata_settings import HttpSettings, MetadataSettings
from bootbridge.metadata.dns import DnsMetadata
from bootbridge.metadata.http import HttpMetadata
from bootbridge.metadata.static import StaticMetadata


def metadata_from(settings: MetadataSettings, subject: str) -> Metadata:
    """Builds the source; `subject` is the settings' place in errors. Raises OperatorError."""
    if settings.static:
        return StaticMetadata(settings.static.file)
    if settings.dns:
        own = StaticMetadata(settings.dns.file)
        return DnsMetadata(settings.dns.control_planes, own, lookup_seconds=settings.dns.seconds)
    assert settings.http, "there is exactly one source"
    return _http(settings.http, f"{subject}.http")


def _http(settings: HttpSettings, subject: str) -> Metadata:
    tls = _trust(settings.ca_file, f"{subject}.caFile")
    try:
        return HttpMetadata(settings.url, answer_seconds=settings.seconds, tls=tls)
    except OperatorError as error:
        raise OperatorError(error.args[0], subject=f"{subject}.url", hint=error.hint) from None


def _trust(path: str, subject: str) -> ssl.SSLContext | None:
    if not path:
        return None
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise OperatorError(f"cannot use {path}: {error.strerror or error}", subject=subject) from None
