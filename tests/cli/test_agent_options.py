"""The proxy-agent's defaults and refusals: the original's, and then our own."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from bootbridge.cli.agent_flags import FLAGS
from bootbridge.errors import OperatorError
from bootbridge.options import LoggingOptions
from bootbridge.proxy_agent.options import AgentOptions, validate

DEFAULTS = {
    "agent_cert": "",
    "agent_key": "",
    "ca_cert": "",
    "proxy_server_host": ("127.0.0.1",),
    "proxy_server_port": 8091,
    "alpn_proto": (),
    "health_server_host": "",
    "health_server_port": 8093,
    "admin_bind_address": "127.0.0.1",
    "admin_server_port": 8094,
    "enable_profiling": False,
    "enable_contention_profiling": False,
    "agent_identifiers": "",
    "sync_interval": 1.0,
    "sync_interval_cap": 10.0,
    "probe_interval": 1.0,
    "keepalive_time": 3600.0,
    "service_account_token_path": "",
    "warn_on_channel_limit": False,
    "sync_forever": False,
    "xfr_channel_size": 150,
    "count_server_leases": False,
    "lease_namespace": "kube-system",
    "lease_label_selector": "k8s-app=konnectivity-server",
    "server_count_source": "default",
    "kubeconfig": "",
    "kube_api_content_type": "application/vnd.kubernetes.protobuf",
    "drain_timeout": 25.0,
    "stall_timeout": 10.0,
    "allow_destinations": (),
    "deny_destinations": (),
}


def refusal(**change: object) -> OperatorError:
    with pytest.raises(OperatorError) as caught:
        validate(replace(AgentOptions(), **change))
    return caught.value


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_is_unchanged(name):
    """A changed default would break a running deployment."""
    value = getattr(AgentOptions(), name)
    assert value == DEFAULTS[name]
    assert type(value) is type(DEFAULTS[name])


def test_every_field_has_its_default_pinned():
    """Those about logs are pinned with the server's; every field can be set by a flag."""
    shared = {field.name for field in fields(LoggingOptions)}
    names = {field.name for field in fields(AgentOptions)}
    assert names == set(DEFAULTS) | shared | {"agent_id"}
    assert names == {flag.field_name for flag in FLAGS}


def test_the_agent_id_comes_from_the_environment_or_is_random(monkeypatch):
    """The flag beats both."""
    monkeypatch.setenv("PROXY_AGENT_ID", "one")
    assert AgentOptions().agent_id == "one"
    assert AgentOptions(agent_id="two").agent_id == "two"
    monkeypatch.delenv("PROXY_AGENT_ID")
    assert AgentOptions().agent_id != AgentOptions().agent_id


def test_the_defaults_pass():
    """An agent beside its server needs no flag but certificates."""
    validate(AgentOptions())


@pytest.mark.parametrize("side", ["proxy", "health", "admin"])
@pytest.mark.parametrize("port", [0, -1])
def test_ports_must_be_positive(side, port):
    """By the text that upstream's tests compare."""
    error = refusal(**{f"{side}_server_port": port})
    assert error.args[0] == f"{side} server port {port} must be greater than 0"
    assert error.subject == f"--{side}-server-port"


@pytest.mark.parametrize("side", ["proxy", "health", "admin"])
@pytest.mark.parametrize("port", [1, 1023, 1024, 49151, 49152, 65535])
def test_any_real_port_passes(side, port):
    """The agent is not as strict as the server."""
    validate(AgentOptions(**{f"{side}_server_port": port}))


@pytest.mark.parametrize("side", ["proxy", "health", "admin"])
def test_a_port_that_no_socket_has_is_refused(side):
    """The original finds out much later."""
    assert refusal(**{f"{side}_server_port": 65536}).subject == f"--{side}-server-port"


REFUSALS = [
    ({"xfr_channel_size": 0}, "channel size 0 must be greater than 0", "--xfr-channel-size"),
    ({"xfr_channel_size": -10}, "channel size -10 must be greater than 0", "--xfr-channel-size"),
    (
        {"enable_contention_profiling": True},
        "if --enable-contention-profiling is set, --enable-profiling must also be set",
        "--enable-profiling",
    ),
    (
        {"sync_interval": 11.0},
        "sync interval 11s must be less than sync interval cap 10s",
        "--sync-interval",
    ),
    (
        {"sync_interval": 3600.0, "sync_interval_cap": 0.5},
        "sync interval 1h0m0s must be less than sync interval cap 500ms",
        "--sync-interval",
    ),
    (
        {"service_account_token_path": "/nosuch"},
        "error checking service account token path /nosuch, got stat /nosuch: no such file or directory",
        "--service-account-token-path",
    ),
    (
        {"agent_identifiers": "host=a&zone=b"},
        "agent address is invalid: unknown address type: zone",
        "--agent-identifiers",
    ),
    (
        {"agent_identifiers": "uid=b"},
        "agent address is invalid: unknown address type: uid",
        "--agent-identifiers",
    ),
    (
        {"agent_identifiers": "host=a;ipv4=1.2.3.4"},
        "agent address is invalid: invalid semicolon separator in query",
        "--agent-identifiers",
    ),
    (
        {"agent_identifiers": "host=%zz"},
        'agent address is invalid: invalid URL escape "%zz"',
        "--agent-identifiers",
    ),
    (
        {"agent_identifiers": "host=a%"},
        'agent address is invalid: invalid URL escape "%"',
        "--agent-identifiers",
    ),
    (
        {"kubeconfig": "/nosuch"},
        'error checking KubeconfigPath "/nosuch", got stat /nosuch: no such file or directory',
        "--kubeconfig",
    ),
    (
        {"server_count_source": "foobar"},
        "--server-count-source must be one of '', 'default', 'max', got foobar",
        "--server-count-source",
    ),
    (
        {"ca_cert": "/nosuch"},
        "error checking agent CA cert /nosuch, got stat /nosuch: no such file or directory",
        "--ca-cert",
    ),
    (
        {"agent_key": "/nosuch"},
        "error checking agent key /nosuch, got stat /nosuch: no such file or directory",
        "--agent-key",
    ),
    (
        {"agent_cert": "/nosuch"},
        "error checking agent cert /nosuch, got stat /nosuch: no such file or directory",
        "--agent-cert",
    ),
    ({"drain_timeout": -1.0}, "drain-timeout must be >= 0, got -1s", "--drain-timeout"),
    ({"stall_timeout": 0.0}, "stall-timeout must be > 0, got 0s", "--stall-timeout"),
    ({"sync_interval": 0.0}, "sync-interval must be > 0, got 0s", "--sync-interval"),
    ({"probe_interval": -0.5}, "probe-interval must be > 0, got -500ms", "--probe-interval"),
    ({"log_format": ""}, "log format must be 'text' or 'json' not \"\"", "--log-format"),
    ({"proxy_server_host": ()}, "host missing", "--proxy-server-host"),
    ({"proxy_server_host": ("a", "")}, "empty host in list", "--proxy-server-host"),
    ({"proxy_server_host": ("a:8091",)}, 'invalid host "a:8091": contains a port', "--proxy-server-host"),
    (
        {"proxy_server_host": ("[::1]:8091",)},
        'invalid host "[::1]:8091": contains a port',
        "--proxy-server-host",
    ),
    (
        {"proxy_server_host": ("a..b",)},
        'invalid host name "a..b": a label is empty or longer than 63 characters',
        "--proxy-server-host",
    ),
]


@pytest.mark.parametrize(("change", "message", "flag"), REFUSALS)
def test_an_invalid_value_is_refused(change, message, flag):
    """The text is the original's where it has one; the flag and the fix are named beside it."""
    error = refusal(**change)
    assert error.args[0] == message
    assert flag in str(error)
    assert error.hint


@pytest.mark.parametrize(
    "change",
    [
        {"server_count_source": ""},
        {"server_count_source": "max"},
        {"sync_interval": 10.0},
        {"proxy_server_host": ("::1", "[fd00::1]", "konnectivity.example", "rooted.example.", "10.0.0.5")},
        {"drain_timeout": 0.0},
        {"alpn_proto": ("konnectivity",)},
        {
            "agent_identifiers": "host=localhost&host=node1.mydomain.com&cidr=127.0.0.1/16&ipv4=1.2.3.4"
            "&ipv4=5.6.7.8&ipv6=:::::&default-route=true"
        },
        {"agent_identifiers": "&&host=a%20b&h%6fst=c"},
    ],
)
def test_a_valid_value_is_accepted(change):
    """What the original takes, and several servers, pass."""
    validate(AgentOptions(**change))


def test_a_key_requires_its_certificate_and_vice_versa(tmp_path):
    """The error names the missing flag."""
    path = tmp_path / "half.pem"
    path.write_text("x")
    for given, missing in (("key", "cert"), ("cert", "key")):
        error = refusal(**{f"agent_{given}": str(path)})
        assert error.args[0] == f'cannot have agent {missing} empty when agent {given} is set to "{path}"'
    assert refusal(ca_cert=str(tmp_path)).args[0] == f"{tmp_path} is a directory"


@pytest.mark.parametrize("flag", ["lease-label", "lease-label-selector"])
def test_a_bad_selector_is_refused_by_the_flag_that_brought_it(flag):
    """While flags are read, as upstream's tests expect."""
    with pytest.raises(OperatorError) as caught:
        FLAGS.parse([f"--{flag}=*notavalidlabel*"])
    assert caught.value.args[0].startswith(f'invalid argument "*notavalidlabel*" for "--{flag}" flag')


@pytest.mark.parametrize("flag", ["lease-label", "lease-label-selector"])
@pytest.mark.parametrize("selector", ["", "k8s-app=konnectivity-server,component=proxy"])
def test_good_selectors_are_kept(flag, selector):
    """Under the old name too."""
    assert FLAGS.parse([f"--{flag}={selector}"]).fields == {"lease_label_selector": selector}


def test_several_servers_by_comma_or_repetition():
    """The default host is replaced, not joined."""
    parsed = FLAGS.parse(["--proxy-server-host=a,b", "--proxy-server-host", "::1"])
    assert AgentOptions(**parsed.fields).proxy_server_host == ("a", "b", "::1")
