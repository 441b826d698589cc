"""The proxy-server's defaults and refusals: the original's, and then our own."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest

from bootbridge.cli.server_flags import FLAGS
from bootbridge.errors import OperatorError
from bootbridge.proxy_server.options import ServerOptions, validate, warnings
from bootbridge.runtime.tls_files import _OPENSSL_NAMES, _TLS13_SUITES

DEFAULTS = {
    "server_cert": "",
    "server_key": "",
    "server_ca_cert": "",
    "cluster_cert": "",
    "cluster_key": "",
    "cluster_ca_cert": "",
    "mode": "grpc",
    "uds_name": "",
    "delete_existing_uds_file": True,
    "server_port": 8090,
    "server_bind_address": "",
    "agent_port": 8091,
    "agent_bind_address": "",
    "health_port": 8092,
    "health_bind_address": "",
    "admin_port": 8095,
    "admin_bind_address": "127.0.0.1",
    "keepalive_time": 3600.0,
    "frontend_keepalive_time": 3600.0,
    "enable_profiling": False,
    "enable_contention_profiling": False,
    "server_count": 1,
    "agent_namespace": "",
    "agent_service_account": "",
    "authentication_audience": "",
    "agent_token_issuer": (),
    "kubeconfig": "",
    "kubeconfig_qps": 0.0,
    "kubeconfig_burst": 0,
    "kube_api_content_type": "application/vnd.kubernetes.protobuf",
    "proxy_strategies": "default",
    "cipher_suites": (),
    "tls_min_version": "",
    "xfr_channel_size": 10,
    "frontend_write_channel_size": 10,
    "enable_lease_controller": False,
    "lease_namespace": "kube-system",
    "lease_label": "k8s-app=konnectivity-server",
    "graceful_shutdown_timeout": 0.0,
    "backend_dial_timeout": 0.0,
    "first_agent_timeout": 5.0,
    "warn_on_channel_limit": True,
    "insecure_agents": False,
    "direct_cidrs": (),
    "agent_identifier_proof": "none",
    "agent_cidrs": (),
    "agent_hosts": (),
    "agent_default_route": True,
    "agent_proof_kubeconfig": "",
    "node_cidr_mask_size_ipv4": 0,
    "node_cidr_mask_size_ipv6": 0,
    "agent_max_age": 0.0,
    "audit_log": "",
    "stall_timeout": 10.0,
    "allow_destinations": (),
    "deny_destinations": (),
    "log_format": "text",
    "v": 4,
    "vmodule": "",
    "logtostderr": True,
    "alsologtostderr": False,
    "stderrthreshold": 2,
    "alsologtostderrthreshold": 0,
    "legacy_stderr_threshold_behavior": True,
    "log_dir": "",
    "log_file": "",
    "log_file_max_size": 1800,
    "add_dir_header": False,
    "skip_headers": False,
    "skip_log_headers": False,
    "one_output": False,
    "log_backtrace_at": "",
}

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture
def good(tmp_path):
    """Options that pass: the apiserver over TCP with mutual TLS, agents by certificate."""
    paths = {}
    for name in (f"{side}_{part}" for side in ("server", "cluster") for part in ("cert", "key", "ca_cert")):
        path = tmp_path / name
        path.write_text(name)
        paths[name] = str(path)
    return ServerOptions(**paths)


@pytest.fixture
def on_socket(good):
    """Options that pass: the apiserver on a unix socket."""
    return replace(
        good, uds_name="/run/x.sock", server_port=0, server_cert="", server_key="", server_ca_cert=""
    )


def refusal(options: ServerOptions) -> OperatorError:
    with pytest.raises(OperatorError) as caught:
        validate(options)
    return caught.value


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_is_unchanged(name):
    """A changed default would break a running deployment."""
    value = getattr(ServerOptions(), name)
    assert value == DEFAULTS[name]
    assert type(value) is type(DEFAULTS[name])


def test_every_field_has_its_default_pinned():
    """And every field can be set by a flag."""
    names = {field.name for field in fields(ServerOptions)}
    assert names == set(DEFAULTS) | {"server_id"}
    assert names == {flag.field_name for flag in FLAGS}


def test_the_server_id_comes_from_the_environment_or_is_random(monkeypatch):
    """The flag beats both."""
    monkeypatch.setenv("PROXY_SERVER_ID", "one")
    assert ServerOptions().server_id == "one"
    assert ServerOptions(server_id="two").server_id == "two"
    monkeypatch.setenv("PROXY_SERVER_ID", "")
    first, second = ServerOptions().server_id, ServerOptions().server_id
    assert UUID4.fullmatch(first)
    assert first != second


def test_good_options_pass(good, on_socket):
    """On TCP and on a socket."""
    validate(good)
    validate(on_socket)


@pytest.mark.parametrize("side", ["server", "agent", "admin", "health"])
@pytest.mark.parametrize(("port", "word"), [(1023, "reserved"), (0, "reserved"), (-1, "reserved"),
                                            (49152, "ephemeral"), (65536, "ephemeral")])  # fmt: skip
def test_ports_outside_the_registered_range_are_refused(good, side, port, word):
    """By the text that upstream's tests compare."""
    error = refusal(replace(good, **{f"{side}_port": port}))
    assert error.args[0] == f"please do not try to use {word} port {port} for the {side} port"
    assert error.subject == f"--{side}-port"


@pytest.mark.parametrize("side", ["server", "agent", "admin", "health"])
@pytest.mark.parametrize("port", [1024, 49151])
def test_the_edges_of_the_registered_range_pass(good, side, port):
    """Both are inside."""
    validate(replace(good, **{f"{side}_port": port}))


REFUSALS = [
    ({"mode": "tcp"}, "mode must be set to either 'grpc' or 'http-connect' not \"tcp\"", "--mode"),
    (
        {"server_ca_cert": ""},
        "server ca cert must be set when in TCP mode (uds-name is empty)",
        "--server-ca-cert",
    ),
    (
        {"enable_contention_profiling": True},
        "if --enable-contention-profiling is set, --enable-profiling must also be set",
        "--enable-profiling",
    ),
    (
        {"agent_namespace": "a"},
        "--cluster-ca-cert can not be used when agent authentication is enabled",
        "--cluster-ca-cert",
    ),
    (
        {"cluster_ca_cert": "", "agent_service_account": "a"},
        "--agent-namespace cannot be empty when agent authentication is enabled",
        "--agent-namespace",
    ),
    (
        {"cluster_ca_cert": "", "agent_namespace": "a", "authentication_audience": "a"},
        "--agent-service-account cannot be empty when agent authentication is enabled",
        "--agent-service-account",
    ),
    (
        {"cluster_ca_cert": "", "agent_namespace": "a", "agent_service_account": "a"},
        "--authentication-audience cannot be empty when agent authentication is enabled",
        "--authentication-audience",
    ),
    (
        {"kubeconfig": "/nosuch"},
        'checking KubeconfigPath "/nosuch", got stat /nosuch: no such file or directory',
        "--kubeconfig",
    ),
    ({"proxy_strategies": ""}, "ProxyStrategies cannot be empty", "--proxy-strategies"),
    (
        {"proxy_strategies": ","},
        "invalid proxy strategies: proxy strategies cannot be empty",
        "--proxy-strategies",
    ),
    (
        {"proxy_strategies": "invalid"},
        "invalid proxy strategies: unknown proxy strategy: invalid",
        "--proxy-strategies",
    ),
    (
        {"proxy_strategies": "default,desthost"},
        "invalid proxy strategies: unknown proxy strategy: desthost",
        "--proxy-strategies",
    ),
    ({"xfr_channel_size": 0}, "channel size 0 must be greater than 0", "--xfr-channel-size"),
    ({"xfr_channel_size": -10}, "channel size -10 must be greater than 0", "--xfr-channel-size"),
    (
        {"frontend_write_channel_size": -1},
        "--frontend-write-channel-size must be >= 0, got -1",
        "--frontend-write-channel-size",
    ),
    (
        {"tls_min_version": "InvalidVersion"},
        'unsupported TLS version "InvalidVersion", supported values are: '
        "VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13",
        "--tls-min-version",
    ),
    (
        {"cipher_suites": ("TLS_RSA_WITH_RC4_128_SHA",)},
        "cipher suite TLS_RSA_WITH_RC4_128_SHA not supported, doesn't exist or considered as insecure",
        "--cipher-suites",
    ),
    ({"enable_lease_controller": True, "lease_label": ""}, "empty string provided", "--lease-label"),
    (
        {"enable_lease_controller": True, "lease_label": "a=b,c"},
        "invalid label format: c",
        "--lease-label",
    ),
    (
        {"graceful_shutdown_timeout": -1.0},
        "graceful-shutdown-timeout must be >= 0, got -1s",
        "--graceful-shutdown-timeout",
    ),
    (
        {"backend_dial_timeout": -1.0},
        "backend-dial-timeout must be >= 0, got -1s",
        "--backend-dial-timeout",
    ),
    (
        {"first_agent_timeout": -1.0},
        "first-agent-timeout must be >= 0, got -1s",
        "--first-agent-timeout",
    ),
    ({"log_format": "xml"}, "log format must be 'text' or 'json' not \"xml\"", "--log-format"),
    ({"stall_timeout": 0.0}, "stall-timeout must be > 0, got 0s", "--stall-timeout"),
]


@pytest.mark.parametrize(("change", "message", "flag"), REFUSALS)
def test_an_invalid_value_is_refused(good, change, message, flag):
    """The text is the original's where it has one; the flag and the fix are named beside it."""
    error = refusal(replace(good, **change))
    assert error.args[0] == message
    assert flag in str(error)
    assert error.hint


@pytest.mark.parametrize(
    "change",
    [
        {"graceful_shutdown_timeout": 0.0},
        {"graceful_shutdown_timeout": 30.0},
        {"backend_dial_timeout": 0.0},
        {"backend_dial_timeout": 30.0},
        {"frontend_write_channel_size": 0},
        {"mode": "http-connect"},
        {"proxy_strategies": "destHost,,defaultRoute,default,cidr"},
        {"tls_min_version": "VersionTLS10"},
        {"tls_min_version": "VersionTLS13"},
        {"cipher_suites": ("TLS_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA")},
        {"cipher_suites": (*sorted(_TLS13_SUITES), *sorted(_OPENSSL_NAMES))},
        {"lease_label": ""},
        {"enable_lease_controller": True, "lease_label": " a = b ,c=d"},
        {"enable_contention_profiling": True, "enable_profiling": True},
        {"log_format": "json"},
        {"proxy_strategies": "direct,default", "direct_cidrs": ("10.0.0.0/24", "fd00::/64", "10.1.2.3/16")},
    ],
)
def test_a_valid_value_is_accepted(good, change):
    """What the original takes, and our additions, pass."""
    validate(replace(good, **change))


@pytest.mark.parametrize("side", ["server", "cluster"])
@pytest.mark.parametrize(("given", "missing"), [("key", "cert"), ("cert", "key")])
def test_a_key_requires_its_certificate_and_vice_versa(good, side, given, missing):
    """The error names the missing flag."""
    error = refusal(replace(good, **{f"{side}_{missing}": ""}))
    path = getattr(good, f"{side}_{given}")
    assert error.args[0] == f'cannot have {side} {missing} empty when {side} {given} is set to "{path}"'
    assert error.subject == f"--{side}-{missing}"


@pytest.mark.parametrize(
    ("name", "what"),
    [(f"{side}_{part}", f"{side} {word}") for side in ("server", "cluster")
     for part, word in (("key", "key"), ("cert", "cert"), ("ca_cert", "CA cert"))],
)  # fmt: skip
def test_a_file_that_is_not_there_is_named(good, name, what):
    """In the words of the original, Go's stat error included."""
    error = refusal(replace(good, **{name: "/no"}))
    assert error.args[0] == f"error checking {what} /no, got stat /no: no such file or directory"
    assert error.subject == "--" + name.replace("_", "-")


def test_a_directory_or_a_path_through_a_file_is_rejected_as_certificate(good, tmp_path):
    """It would fail at the first handshake otherwise."""
    error = refusal(replace(good, cluster_cert=str(tmp_path)))
    assert str(error) == f"--cluster-cert: {tmp_path} is a directory (use a file in it)"
    error = refusal(replace(good, cluster_ca_cert=f"{good.cluster_cert}/ca.crt"))
    assert "not a directory" in str(error)
    assert error.subject == "--cluster-ca-cert"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"server_port": 8090}, "server port should be set to 0 not 8090 for UDS"),
        ({"server_ca_cert": "cluster"}, "server ca cert should not be set for UDS"),
        ({"server_key": "cluster", "server_cert": "cluster"}, "server key should not be set for UDS"),
    ],
)
def test_a_socket_takes_no_port_and_no_tls(on_socket, change, message):
    """The file's mode guards it."""
    change = {name: on_socket.cluster_cert if value == "cluster" else value for name, value in change.items()}
    assert refusal(replace(on_socket, **change)).args[0] == message


def test_a_socket_path_has_at_most_107_bytes(on_socket):
    """Bytes, not characters; the edge itself passes."""
    validate(replace(on_socket, uds_name="/" + "a" * 106))
    error = refusal(replace(on_socket, uds_name="/" + "a" * 107))
    assert error.subject == "--uds-name"
    assert "108 bytes" in str(error)
    assert refusal(replace(on_socket, uds_name="/" + "ä" * 54)).subject == "--uds-name"


def test_both_listeners_need_a_certificate(good):
    """They always speak TLS, so a start without one could not work."""
    error = refusal(replace(good, cluster_cert="", cluster_key=""))
    assert "--cluster-cert and --cluster-key are required" in str(error)
    error = refusal(replace(good, server_cert="", server_key=""))
    assert "--server-cert and --server-key are required" in str(error)


def test_agents_must_be_authenticated_or_the_risk_be_accepted(good):
    """The one deliberate difference: the original accepts any agent."""
    open_door = replace(good, cluster_ca_cert="")
    error = str(refusal(open_door))
    for flag in ("--cluster-ca-cert", "--agent-namespace", "--insecure-agents"):
        assert flag in error
    accepted = replace(open_door, insecure_agents=True)
    validate(accepted)
    assert any("any client" in text for text in warnings(accepted))
    by_token = replace(open_door, agent_namespace="a", agent_service_account="b", authentication_audience="c")
    validate(by_token)
    assert warnings(by_token) == ()


def test_direct_needs_its_networks_and_the_networks_need_direct(good):
    """Neither is useful alone, and one alone is surely a mistake."""
    assert "--direct-cidrs" in str(refusal(replace(good, proxy_strategies="direct,default")))
    assert "--proxy-strategies=default,direct" in str(refusal(replace(good, direct_cidrs=("10.0.0.0/8",))))


@pytest.mark.parametrize("cidr", ["10.0.0.0/33", "fd00::/129", "host", "", "10.0.0/8"])
def test_an_invalid_cidr_is_quoted(good, cidr):
    """IPv4 and IPv6 alike."""
    error = refusal(replace(good, proxy_strategies="direct", direct_cidrs=("10.0.0.0/8", cidr)))
    assert str(error).startswith(f'--direct-cidrs: invalid CIDR "{cidr}"')
    error = refusal(replace(good, agent_cidrs=("10.0.0.0/8", cidr)))
    assert str(error).startswith(f'--agent-cidrs: invalid CIDR "{cidr}"')


@pytest.mark.parametrize(
    ("cidr", "hint"),
    [
        ("10.0.0.1", "write 10.0.0.1/32"),
        ("fd00::1", "write fd00::1/128"),
        ("10.0.0.0/255.0.0.0", "for example 10.0.0.0/24"),
        ("fe80::%eth0/64", "for example 10.0.0.0/24"),
    ],
)
def test_a_cidr_that_the_server_would_ignore_is_rejected(good, cidr, hint):
    """An allow-list with it would allow nothing, without an error."""
    for changes in ({"agent_cidrs": (cidr,)}, {"proxy_strategies": "direct", "direct_cidrs": (cidr,)}):
        error = str(refusal(replace(good, **changes)))
        assert f'invalid CIDR "{cidr}"' in error
        assert hint in error


@pytest.mark.parametrize("host", ["", "*.", "a.*.b", "**", "x" * 254])
def test_an_invalid_agent_host_is_quoted(good, host):
    """A wildcard is the first label or everything."""
    validate(replace(good, agent_hosts=("node1", "*.example.com", "*", "10.0.0.1")))
    error = refusal(replace(good, agent_hosts=("node1", host)))
    assert str(error).startswith(f'--agent-hosts: invalid host name "{host}"')


def test_a_proof_of_identifiers_needs_its_credential(good):
    """A certificate proves nothing unless it is verified."""
    validate(replace(good, agent_identifier_proof="certificate"))
    error = refusal(replace(good, agent_identifier_proof="tls"))
    assert str(error).startswith('--agent-identifier-proof: unknown value "tls"')
    unverified = replace(good, cluster_ca_cert="", insecure_agents=True, agent_identifier_proof="certificate")
    assert "--cluster-ca-cert is required" in str(refusal(unverified))


def test_a_proof_by_token_needs_account_and_apiserver(good):
    """Together with certificates, which upstream's token authentication excludes."""
    token = replace(
        good,
        agent_identifier_proof="token",
        agent_namespace="a",
        agent_service_account="b",
        agent_proof_kubeconfig="/appears/later",
        node_cidr_mask_size_ipv4=23,
        node_cidr_mask_size_ipv6=64,
    )
    validate(token)
    assert not token.token_authentication
    for missing in ("agent_namespace", "agent_service_account", "agent_proof_kubeconfig"):
        flag = f"--{missing.replace('_', '-')}"
        assert f"{flag} is required" in str(refusal(replace(token, **{missing: ""})))
    error = refusal(replace(token, node_cidr_mask_size_ipv6=129))
    assert str(error).startswith("--node-cidr-mask-size-ipv6: invalid prefix length 129")


def test_direct_networks_that_are_refused_by_default_must_be_permitted(good):
    """The error has the line to write; with it the options are valid."""
    direct = replace(good, proxy_strategies="direct", direct_cidrs=("10.0.0.0/8", "127.0.0.0/16"))
    error = refusal(replace(direct, allow_destinations=("0.0.0.0/0",)))
    assert str(error) == (
        "--direct-cidrs: 127.0.0.0/16 is refused by default "
        "(add --allow-destinations=127.0.0.0/16 to permit it)"
    )
    validate(replace(direct, allow_destinations=("10.0.0.0/8", "127.0.0.0/16")))
    assert "--deny-destinations: invalid" in str(refusal(replace(direct, deny_destinations=("10",))))


def test_old_tls_is_allowed_with_a_warning(good):
    """As in the original."""
    assert warnings(good) == ()
    (text,) = warnings(replace(good, tls_min_version="VersionTLS11"))
    assert "--tls-min-version=VersionTLS11" in text


def test_the_rules_are_applied_in_the_order_of_the_original(good):
    """With several faults the operator sees the one that the original would name."""
    options = replace(good, mode="x", server_port=1, xfr_channel_size=0, backend_dial_timeout=-1.0)
    assert refusal(options).subject == "--mode"
    assert refusal(replace(options, mode="grpc")).subject == "--server-port"
    assert refusal(replace(options, mode="grpc", server_port=49152, agent_port=1)).subject == "--server-port"
    assert refusal(replace(options, mode="grpc", server_port=1, agent_port=49152)).subject == "--agent-port"
    assert refusal(replace(options, mode="grpc", server_port=1024)).subject == "--xfr-channel-size"


def test_what_the_options_mean_together(good):
    """Properties derived from several flags."""
    assert replace(good, proxy_strategies="destHost,,default").strategies == ("destHost", "default")
    assert not good.needs_kubernetes
    assert replace(good, enable_lease_controller=True).needs_kubernetes
    assert replace(good, agent_namespace="a").token_authentication
