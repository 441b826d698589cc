"""The flags of the proxy-agent as one frozen value, validated once.

Field names are flag names with underscores; durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bootbridge.errors import OperatorError
from bootbridge.options import (
    ProxyOptions,
    check_channel_size,
    check_log_format,
    check_profiling,
    check_stall_timeout,
    format_duration,
    identity,
    quote,
    require_duration,
    require_file,
    require_key_pair,
    require_positive_duration,
    require_readable,
)

IDENTIFIERS = ("ipv4", "ipv6", "host", "cidr", "default-route")
SERVER_COUNT_SOURCES = ("", "default", "max")
PORT_MAX = 65535
_PORT_HINT = f"use a port from 1 to {PORT_MAX}"


@dataclass(frozen=True, kw_only=True)
class AgentOptions(ProxyOptions):
    """Every flag of the proxy-agent."""

    agent_cert: str = ""
    agent_key: str = ""
    ca_cert: str = ""
    proxy_server_host: tuple[str, ...] = ("127.0.0.1",)
    proxy_server_port: int = 8091
    alpn_proto: tuple[str, ...] = ()
    health_server_host: str = ""
    health_server_port: int = 8093
    admin_server_port: int = 8094
    agent_id: str = field(default_factory=lambda: identity("PROXY_AGENT_ID"))
    agent_identifiers: str = ""
    sync_interval: float = 1.0
    sync_interval_cap: float = 10.0
    probe_interval: float = 1.0
    service_account_token_path: str = ""
    sync_forever: bool = False
    xfr_channel_size: int = 150
    count_server_leases: bool = False
    lease_label_selector: str = "k8s-app=konnectivity-server"
    server_count_source: str = "default"
    drain_timeout: float = 25.0


def validate(options: AgentOptions) -> None:
    """Raises ``OperatorError`` for the first violated rule, upstream's rules first."""
    for rule in _UPSTREAM_RULES + _OWN_RULES:
        rule(options)


def warnings(options: AgentOptions) -> tuple[str, ...]:
    """Returns warnings about valid but risky flags: none so far."""
    return ()


def _certificates(options: AgentOptions) -> None:
    require_key_pair("agent", options.agent_key, options.agent_cert)
    if path := options.ca_cert:
        require_file(path, f"error checking agent CA cert {path}", "--ca-cert")


def _ports(options: AgentOptions) -> None:
    for side in ("proxy", "health", "admin"):
        port = getattr(options, f"{side}_server_port")
        if port <= 0:
            text = f"{side} server port {port} must be greater than 0"
            raise OperatorError(text, subject=f"--{side}-server-port", hint=_PORT_HINT)


def _sync_intervals(options: AgentOptions) -> None:
    if options.sync_interval > options.sync_interval_cap:
        interval, cap = format_duration(options.sync_interval), format_duration(options.sync_interval_cap)
        text = f"sync interval {interval} must be less than sync interval cap {cap}"
        raise OperatorError(text, subject="--sync-interval", hint="lower it, or raise --sync-interval-cap")


def _token(options: AgentOptions) -> None:
    if path := options.service_account_token_path:
        purpose = f"error checking service account token path {path}"
        require_file(path, purpose, "--service-account-token-path")


def _identifiers(options: AgentOptions) -> None:
    hint = "write host=node1&ipv4=10.0.0.1&cidr=10.1.0.0/16, percent-encoded"
    for key in _query_keys(options.agent_identifiers, hint):
        if key not in IDENTIFIERS:
            text = f"agent address is invalid: unknown address type: {key}"
            hint = f"the types are: {', '.join(IDENTIFIERS)}"
            raise OperatorError(text, subject="--agent-identifiers", hint=hint)


def _query_keys(query: str, hint: str) -> list[str]:
    """Returns the decoded keys of a URL query; raises for what a Go server cannot decode."""
    keys = []
    for part in filter(None, query.split("&")):
        problem = "invalid semicolon separator in query" if ";" in part else _bad_escape(part)
        if problem:
            text = f"agent address is invalid: {problem}"
            raise OperatorError(text, subject="--agent-identifiers", hint=hint)
        keys.append(_decode(part.partition("=")[0]))
    return keys


def _bad_escape(text: str) -> str:
    hexadecimal = frozenset("0123456789abcdefABCDEF")
    for piece in text.split("%")[1:]:
        if len(piece) < 2 or not hexadecimal.issuperset(piece[:2]):
            return f"invalid URL escape {quote('%' + piece[:2])}"
    return ""


def _decode(key: str) -> str:
    if "%" not in key and "+" not in key:
        return key
    from urllib.parse import unquote_plus

    return unquote_plus(key)


def _kubeconfig(options: AgentOptions) -> None:
    if path := options.kubeconfig:
        require_file(path, f"error checking KubeconfigPath {quote(path)}", "--kubeconfig")


def _server_count_source(options: AgentOptions) -> None:
    if options.server_count_source not in SERVER_COUNT_SOURCES:
        source = options.server_count_source
        text = f"--server-count-source must be one of '', 'default', 'max', got {source}"
        raise OperatorError(text, hint="omit it for 'default'")


def _port_range(options: AgentOptions) -> None:
    for side in ("proxy", "health", "admin"):
        port = getattr(options, f"{side}_server_port")
        if port > PORT_MAX:
            text = f"{side} server port {port} must not be greater than {PORT_MAX}"
            raise OperatorError(text, subject=f"--{side}-server-port", hint=_PORT_HINT)


def _hosts(options: AgentOptions) -> None:
    if not any(options.proxy_server_host):
        hint = "for example --proxy-server-host=10.0.0.5"
        raise OperatorError("host missing", subject="--proxy-server-host", hint=hint)
    for host in options.proxy_server_host:
        if not host:
            text, hint = "empty host in list", "remove the extra comma"
            raise OperatorError(text, subject="--proxy-server-host", hint=hint)
        # Two colons or more are an IPv6 address; a single one starts a port.
        if host.count(":") == 1 or "]:" in host:
            text = f"invalid host {quote(host)}: contains a port"
            hint = "set the port with --proxy-server-port"
            raise OperatorError(text, subject="--proxy-server-host", hint=hint)
        if ":" not in host and not all(0 < len(label) <= 63 for label in host.removesuffix(".").split(".")):
            text = f"invalid host name {quote(host)}: a label is empty or longer than 63 characters"
            hint = "check for an extra dot"
            raise OperatorError(text, subject="--proxy-server-host", hint=hint)


def _timeouts(options: AgentOptions) -> None:
    require_duration(options.drain_timeout, "drain-timeout")
    check_stall_timeout(options)
    require_positive_duration(options.sync_interval, "sync-interval")
    require_positive_duration(options.probe_interval, "probe-interval")


def _destinations(options: AgentOptions) -> None:
    if options.allow_destinations or options.deny_destinations:
        # Imported here: --help does not need it.
        from bootbridge.runtime.destination_policy import DestinationPolicy

        DestinationPolicy(options.allow_destinations, options.deny_destinations)


def _files_are_readable(options: AgentOptions) -> None:
    for flag in ("agent-key", "agent-cert", "ca-cert", "service-account-token-path", "kubeconfig"):
        require_readable(getattr(options, flag.replace("-", "_")), f"--{flag}")


_UPSTREAM_RULES = (
    _certificates,
    _ports,
    check_channel_size,
    check_profiling,
    _sync_intervals,
    _token,
    _identifiers,
    _kubeconfig,
    _server_count_source,
)

_OWN_RULES = (
    _port_range,
    _hosts,
    _timeouts,
    _destinations,
    check_log_format,
    _files_are_readable,
)
