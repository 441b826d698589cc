"""Why TLS failed, in words that say which certificate is wrong, and what it has instead.

OpenSSL's own texts name neither: `IP address mismatch` does not tell the names of the certificate, and `sslv3
alert bad certificate` does not tell whose certificate the peer complains about.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from bootbridge.wire.addresses import parse_ip

# The peer chooses the names of its certificate, and may not be the one that we want to reach.
_NAMES_MAX: Final = 8
_NAME_CHARACTERS_MAX: Final = 100

# X509_V_ERR_*
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNTRUSTED = frozenset((18, 19, 20, 21))
_WRONG_NAME = frozenset((62, 64))  # host name, IP address

# Alerts about the certificate that we sent, by OpenSSL's name, and what to do.
_REJECTIONS: Final = {
    "BAD_CERTIFICATE": "its names, its CA or its dates; the peer's log has the reason",
    "CERTIFICATE_UNKNOWN": "its names, its CA or its dates; the peer's log has the reason",
    "UNKNOWN_CA": "the peer trusts another CA",
    "CERTIFICATE_EXPIRED": "renew it, or correct the peer's clock",
    "CERTIFICATE_REVOKED": "issue a new one",
    "UNSUPPORTED_CERTIFICATE": "its purpose is not the one that the peer requires",
}
_NONE_SENT: Final = "CERTIFICATE_REQUIRED"


def tls_failure(error: ssl.SSLError, tls: ssl.SSLObject | None = None) -> str:
    """Returns the reason of a failed handshake or a broken connection; `tls` is that of a client."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {_verification_failure(error, tls)}"
    name = error.reason or ""
    _, is_alert, alert = name.partition("ALERT_")
    words = (alert or name or str(error)).lower().replace("_", " ")
    if not is_alert:
        return f"TLS: {words}"
    if alert in _REJECTIONS:
        return f"TLS: the peer rejected our certificate: {words} ({_REJECTIONS[alert]})"
    if alert == _NONE_SENT:
        return f"TLS: {words}: we sent none"
    return f"TLS: the peer sent the alert {words}"


def _verification_failure(error: ssl.SSLCertVerificationError, tls: ssl.SSLObject | None) -> str:
    peer = _unverified(tls)
    if error.verify_code in _WRONG_NAME and tls is not None and peer:
        names = [_shown(name) for kind, name in peer.get("subjectAltName", ()) if kind != "DirName"]
        listed = ", ".join(names[:_NAMES_MAX]) + (", …" if len(names) > _NAMES_MAX else "")
        held = f"only for {listed}" if names else "because it has no alternative names"
        fix = "dial one of its names, or issue it for this one" if names else "issue it for this name"
        return f"the peer's certificate is not valid for {tls.server_hostname}, {held} ({fix})"
    if error.verify_code in _UNTRUSTED and peer:
        issuer = _shown(", ".join(value for part in peer.get("issuer", ()) for _, value in part))
        return f"{error.verify_message}: {issuer!r}, not in the CA file, issued the peer's certificate"
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED) and peer:
        moment = peer.get("notAfter" if error.verify_code == _EXPIRED else "notBefore", "")
        return f"{error.verify_message}: {moment}"
    return error.verify_message


def _unverified(tls: ssl.SSLObject | None) -> dict[str, Any]:
    """Returns the peer's certificate, which it may not own; empty if it is not known.

    After a failed handshake only the private object has it (Python 3.10 and newer).
    """
    try:
        found: dict[str, Any] = tls._sslobj.get_unverified_chain()[0].get_info()  # type: ignore[union-attr]
    except (AttributeError, TypeError, IndexError, ValueError):
        return {}
    return found


def _shown(name: str) -> str:
    """A name as the operator writes it: OpenSSL does not abbreviate IPv6 addresses."""
    return str(parse_ip(name) or name[:_NAME_CHARACTERS_MAX])
