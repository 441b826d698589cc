"""Merges overrides by the operator's rules, derives flags, and runs `bootbridge kasconfig`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.bootstrap.render import egress_selector, kasconfig
from bootbridge.bootstrap.render.kasconfig import ConfigFile
from bootbridge.cli.main import main
from bootbridge.common.yaml_text import to_yaml
from bootbridge.errors import OperatorError

HEAD = {"apiVersion": "kubecontrolplane.config.openshift.io/v1", "kind": "KubeAPIServerConfig"}
BASE = {
    **HEAD,
    "apiServerArguments": {
        "enable-aggregator-routing": ["true"],
        "feature-gates": ["A=true", "B=false"],
        "v": ["2"],
    },
    "servicesSubnet": "172.30.0.0/16",
    "servingInfo": {"bindAddress": "0.0.0.0:6443", "bindNetwork": "tcp4"},
}


def layer(content: object, name: str = "override.yaml") -> ConfigFile:
    return ConfigFile(name, content if isinstance(content, bytes) else to_yaml(content))


def merged(*contents: object) -> dict[str, Any]:
    return kasconfig.merge(*map(layer, contents))


# --- the operator's rules, one per row

RULES: dict[str, tuple[object, object, object]] = {
    "a key the base lacks is copied": ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
    "a map the base lacks is copied": ({}, {"a": {"b": [1]}}, {"a": {"b": [1]}}),
    "maps are merged key by key": ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
    "and so are maps inside them": (
        {"a": {"b": {"c": 1, "d": 2}}},
        {"a": {"b": {"d": 3}}},
        {"a": {"b": {"c": 1, "d": 3}}},
    ),
    "a scalar replaces a scalar": ({"a": 1}, {"a": "x"}, {"a": "x"}),
    "a list replaces the whole list": ({"a": [1, 2, 3]}, {"a": [4]}, {"a": [4]}),
    "a list of maps is not merged by element": (
        {"a": [{"n": 1, "m": 1}]},
        {"a": [{"n": 1}]},
        {"a": [{"n": 1}]},
    ),
    "an empty list replaces too": ({"a": [1]}, {"a": []}, {"a": []}),
    "null replaces": ({"a": {"b": 1}}, {"a": None}, {"a": None}),
    "a scalar replaces a map": ({"a": {"b": 1}}, {"a": 1}, {"a": 1}),
    "a map replaces a scalar": ({"a": 1}, {"a": {"b": 2}}, {"a": {"b": 2}}),
    "a map replaces a list": ({"a": [1]}, {"a": {"b": 2}}, {"a": {"b": 2}}),
    "an empty map leaves a map alone": ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 1}}),
    "an empty map empties a scalar": ({"a": 1}, {"a": {}}, {"a": {}}),
    "false and 0 are values": ({"a": True, "b": 1}, {"a": False, "b": 0}, {"a": False, "b": 0}),
    "an override without type is accepted": ({**HEAD, "a": 1}, {"a": 2}, {**HEAD, "a": 2}),
    "an override of the same type is accepted": ({**HEAD, "a": 1}, {**HEAD, "a": 2}, {**HEAD, "a": 2}),
    "an empty file changes nothing": ({"a": 1}, b"", {"a": 1}),
    "a file of comments changes nothing": ({"a": 1}, b"# nothing\n", {"a": 1}),
    "JSON is read as well": ({"a": 1}, b'{"a":\t{"b": 2}}', {"a": {"b": 2}}),
    "keys are text": ({"a": 1}, b"2: x\ntrue: z\n", {"a": 1, "2": "x", "true": "z"}),
}


@pytest.mark.parametrize("rule", RULES)
def test_merge_rules(rule: str) -> None:
    base, override, expected = RULES[rule]
    assert merged(base, override) == expected


def test_overrides_are_applied_in_order() -> None:
    """A later one has precedence, key by key."""
    assert merged({"a": 1, "b": 1}, {"a": 2, "b": 2}, {"b": 3}) == {"a": 2, "b": 3}


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            {**HEAD, "kind": "Pod"},
            "/Pod does not equal kubecontrolplane.config.openshift.io/v1/KubeAPIServerConfig",
        ),
        ({"kind": "KubeAPIServerConfig"}, "/KubeAPIServerConfig does not equal"),
        (
            {"apiVersion": "v1"},
            "v1/ does not equal kubecontrolplane.config.openshift.io/v1/KubeAPIServerConfig",
        ),
    ],
)
def test_an_override_of_another_type_is_rejected(override: object, text: str) -> None:
    """With the operator's text. If it has apiVersion or kind, both must match."""
    with pytest.raises(OperatorError) as caught:
        merged(HEAD, override)
    assert text in str(caught.value)
    assert caught.value.subject == "override.yaml"


def test_merge_does_not_change_its_inputs() -> None:
    base, override = {"a": {"b": [1]}}, {"a": {"c": {"d": 1}}}
    first = merged(base, override)
    first["a"]["c"]["d"] = 2
    assert merged(base, override) == {"a": {"b": [1], "c": {"d": 1}}}


json_maps = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["x", "y", "1e3", "0o7", "on"]),
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=3,
)


@given(json_maps, json_maps)
def test_merge_is_idempotent(base: object, override: object) -> None:
    assert merged(base, override, override) == merged(base, override)


@given(json_maps, json_maps)
def test_changes_are_complete(base: Any, override: Any) -> None:
    """Applying them to the base gives the merged file."""
    after = merged(base, override)
    rebuilt = kasconfig.merge(layer(base))
    for change in kasconfig.changes(base, after):
        *parents, last = change.path.removeprefix(".").split(".")
        place = rebuilt
        for parent in parents:
            place = place[parent]
        assert change.kind in ("added", "changed"), "an override cannot remove"
        place[last] = change.after
    assert rebuilt == after


@given(json_maps)
def test_yaml_round_trip(document: object) -> None:
    """No string becomes a number or a boolean."""
    assert yaml.safe_load(to_yaml(document)) == document


# --- Go templates


def test_a_go_template_is_rejected() -> None:
    """The operator would execute it. The error has the line."""
    with pytest.raises(OperatorError, match=r"unsupported Go template in line 2: '\{\{'") as caught:
        merged({}, b"a: 1\nb: {{ .BindAddress }}\n")
    assert caught.value.subject == "override.yaml"


@pytest.mark.parametrize("quoted", [b'{{"{{"}} .X }}', b"{{`{{`}} .X }}", b'{{ "{{" }} .X }}'])
def test_quoted_braces_are_literal_braces(quoted: bytes) -> None:
    """As the error recommends."""
    assert merged({}, b"a: '" + quoted + b"'\n") == {"a": "{{ .X }}"}


# --- files that cannot be merged


@pytest.mark.parametrize("content", [b"a: [", b"- a", b"text", b"\x00", b"a: !!python/object:os.x"])
def test_an_invalid_file_is_rejected(content: bytes) -> None:
    """The error has its name."""
    with pytest.raises(OperatorError, match=r"override\.yaml"):
        merged(BASE, content)


# --- flags


def flags(**fields: object) -> list[str]:
    return kasconfig.flags({**BASE, **fields})


def test_arguments_become_flags() -> None:
    """Sorted by key, one per value, as in the kube-apiserver's log."""
    mine = [
        flag
        for flag in flags()
        if flag.split("=")[0] in ("--enable-aggregator-routing", "--feature-gates", "--v")
    ]
    assert mine == [
        "--enable-aggregator-routing=true",
        "--feature-gates=A=true",
        "--feature-gates=B=false",
        "--v=2",
    ]
    assert flags() == sorted(flags(), key=lambda flag: flag.split("=")[0])


def test_other_fields_become_flags() -> None:
    """An argument has precedence over a field."""
    assert "--bind-address=0.0.0.0" in flags()
    assert "--secure-port=6443" in flags()
    assert "--service-cluster-ip-range=172.30.0.0/16" in flags()
    given_flags = flags(apiServerArguments={"secure-port": ["7443"], "bind-address": ["::1"]})
    assert [flag for flag in given_flags if "port" in flag or "bind" in flag] == [
        "--bind-address=::1",
        "--secure-port=7443",
    ]


def test_an_argument_without_values_is_ignored() -> None:
    """The derived flag is used."""
    assert "--secure-port=6443" in flags(apiServerArguments={"secure-port": []})


def test_an_ipv6_bind_address_has_no_brackets() -> None:
    assert "--bind-address=::" in flags(servingInfo={"bindAddress": "[::]:6443"})


def test_serving_and_audit_fields_become_flags() -> None:
    """Certificates by name, cipher suites, and the audit log."""
    found = flags(
        servingInfo={
            "bindAddress": "0.0.0.0:6443",
            "minTLSVersion": "VersionTLS12",
            "cipherSuites": ["S1", "S2"],
            "namedCertificates": [
                {"certFile": "a.crt", "keyFile": "a.key"},
                {"certFile": "b.crt", "keyFile": "b.key", "names": ["x", "y"]},
            ],
        },
        auditConfig={"enabled": True, "auditFilePath": "/var/log/audit.log", "maximumFileSizeMegabytes": 100},
        serviceAccountPublicKeyFiles=["/k1", "/k2"],
        corsAllowedOrigins=["//localhost"],
    )
    for flag in (
        "--tls-min-version=VersionTLS12",
        "--tls-cipher-suites=S1",
        "--tls-cipher-suites=S2",
        "--tls-sni-cert-key=a.crt,a.key",
        "--tls-sni-cert-key=b.crt,b.key:x,y",
        "--audit-log-path=/var/log/audit.log",
        "--audit-log-maxsize=100",
        "--service-account-key-file=/k2",
        "--cors-allowed-origins=//localhost",
    ):
        assert flag in found


def test_the_tunnels_override_becomes_one_flag() -> None:
    """Other flags stay unchanged."""
    plan = Plan()
    after = merged(BASE, egress_selector.config_override(plan))
    new = set(kasconfig.flags(after)) - set(kasconfig.flags(BASE))
    assert new == {f"--egress-selector-config-file={plan.paths.egress_config_seen_by_apiserver}"}
    assert set(kasconfig.flags(BASE)) <= set(kasconfig.flags(after))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"apiServerArguments": {"v": "2"}}, r"apiServerArguments\.v"),
        ({"apiServerArguments": {"v": [2]}}, r"apiServerArguments\.v\[0\]"),
        ({"apiServerArguments": ["v"]}, "apiServerArguments"),
        ({"servingInfo": {"bindAddress": "0.0.0.0"}}, r"servingInfo\.bindAddress"),
        ({"servingInfo": {"bindAddress": "::1"}}, r"servingInfo\.bindAddress"),
        ({"servingInfo": None}, r"servingInfo\.bindAddress"),
    ],
)
def test_an_invalid_field_is_rejected(fields: dict[str, object], named: str) -> None:
    """The kube-apiserver would not start with it. The error has the field."""
    with pytest.raises(OperatorError, match=named):
        flags(**fields)


# --- the command


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    base, override = tmp_path / "base.yaml", tmp_path / "override.yaml"
    base.write_bytes(to_yaml(BASE))
    override.write_bytes(to_yaml({"apiServerArguments": {"v": ["4"], "x": ["1"]}}))
    return [str(base), str(override)]


def test_prints_the_merged_file(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As YAML with sorted keys, or as JSON."""
    assert main(["kasconfig", *files]) == 0
    text = capsys.readouterr().out
    expected = merged(BASE, {"apiServerArguments": {"v": ["4"], "x": ["1"]}})
    assert yaml.safe_load(text) == expected
    assert text.index("apiServerArguments") < text.index("apiVersion") < text.index("kind")
    assert main(["kasconfig", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected


def test_prints_flags(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One per line."""
    assert main(["kasconfig", *files, "--flags"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "--v=4" in lines
    assert main(["kasconfig", *files, "--flags", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == lines


def test_prints_changes(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As a diff, or `no changes`."""
    assert main(["kasconfig", *files, "--diff"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        '- .apiServerArguments.v: ["2"]',
        '+ .apiServerArguments.v: ["4"]',
        '+ .apiServerArguments.x: ["1"]',
    ]
    assert main(["kasconfig", files[0], files[0], "--diff"]) == 0
    assert capsys.readouterr().out == "no changes\n"


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr, nothing on stdout, exit code 1."""
    assert main(["kasconfig", "/does/not/exist"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "/does/not/exist" in err


def test_tls_defaults_are_those_of_openshifts_kube_apiserver() -> None:
    """It sets them if servingInfo has none: TLS 1.2 and nine cipher suites."""
    predicted = flags(servingInfo={"bindAddress": "0.0.0.0:6443"})

    suites = [each.partition("=")[2] for each in predicted if each.startswith("--tls-cipher-suites=")]
    assert "--tls-min-version=VersionTLS12" in predicted
    assert len(suites) == len(set(suites)) == 9
    assert "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" in suites
