"""Merges overrides into OpenShift's kube-apiserver configuration, and derives the kube-apiserver's flags.

The merge is that of `cluster-kube-apiserver-operator render --config-override-files`: maps are merged key by
key; strings, numbers, null and **lists** replace the earlier value. The flags are those of OpenShift's
kube-apiserver.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import yaml

from bootbridge.bootstrap.render import go_yaml
from bootbridge.errors import OperatorError

Config = dict[str, Any]
# The kube-apiserver writes it at its start, under a random name.
ADMISSION_FILE = "<temporary file made from admission.pluginConfig>"
# What OpenShift's kube-apiserver uses if servingInfo has none: the defaults of library-go.
DEFAULT_TLS_VERSION = "VersionTLS12"
DEFAULT_CIPHER_SUITES = (
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)
# {{"text"}} and {{`text`}}: literal text in a Go template.
_QUOTED_TEXT = re.compile(r"""\{\{ *(?:"(?P<plain>[^"\\\n]*)"|`(?P<raw>[^`\n]*)`) *\}\}""")


@dataclass(frozen=True)
class ConfigFile:
    """Holds one file of the merge, the base or an override. `name` is the file in errors."""

    name: str
    text: bytes


@dataclass(frozen=True)
class ConfigChange:
    """Holds a changed field, such as `.a.b`, with its old and new value (None if missing)."""

    path: str
    before: Any
    after: Any
    kind: str  # added, changed, removed


def merge(base: ConfigFile, *overrides: ConfigFile) -> Config:
    """Returns the configuration with the overrides applied in order."""
    merged = parse(base)
    for override in overrides:
        if override.text:
            merged = _with_override(merged, parse(override), override.name)
    return merged


def _with_override(base: Config, override: Config, name: str) -> Config:
    before, after = _type_of(base), _type_of(override)
    if any(after) and after != before:
        text = f"{after[0]}/{after[1]} does not equal {before[0]}/{before[1]}"
        hint = "use the base's apiVersion and kind, or omit both"
        raise OperatorError(text, subject=name, hint=hint)
    merged = deepcopy(base)
    _merge_into(merged, override)
    return merged


def _type_of(config: Config) -> tuple[str, str]:
    api_version, kind = config.get("apiVersion"), config.get("kind")
    return (
        api_version if isinstance(api_version, str) else "",
        kind if isinstance(kind, str) else "",
    )


def _merge_into(base: Config, override: Config) -> None:
    for key, value in override.items():
        if key in base and isinstance(value, dict):
            if not isinstance(base[key], dict):
                base[key] = {}
            _merge_into(base[key], value)
        else:
            base[key] = deepcopy(value)


# --- parsing


def parse(layer: ConfigFile) -> Config:
    """Returns the content of a file, as the operator's render command reads it."""
    document = _load(_executed(layer.text.decode("utf-8", "replace"), layer.name), layer.name)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise OperatorError("not a mapping", subject=layer.name, hint="give a KubeAPIServerConfig")
    config: Config = _as_json(document, layer.name, "")
    return config


def _executed(text: str, name: str) -> str:
    """Expands quoted text of Go's text/template, through which the operator runs every file."""
    for number, line in enumerate(text.splitlines(), 1):
        if "{{" in _QUOTED_TEXT.sub("", line):
            hint = 'write {{"{{"}} for two literal braces, or give the rendered file'
            message = f"unsupported Go template in line {number}: '{{{{'"
            raise OperatorError(message, subject=name, hint=hint)
    return _QUOTED_TEXT.sub(lambda found: found["raw"] or found["plain"] or "", text)


def _load(text: str, name: str) -> Any:
    try:
        return go_yaml.load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        try:
            return json.loads(text)  # as the operator does
        except ValueError:
            pass
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = getattr(error, "problem", None) or "cannot be parsed"
        raise OperatorError(f"invalid YAML or JSON{where}: {what}", subject=name) from error


def _as_json(value: Any, name: str, path: str) -> Any:
    """Converts YAML values to JSON: keys become strings; infinity and NaN are rejected."""
    if isinstance(value, dict):
        return {_key(key): _as_json(entry, name, f"{path}.{_key(key)}") for key, entry in value.items()}
    if isinstance(value, list):
        return [_as_json(entry, name, f"{path}[{index}]") for index, entry in enumerate(value)]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    hint = "quote it"
    raise OperatorError(f"{path}: not representable in JSON: {value!r}", subject=name, hint=hint)


def _key(key: object) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return "null" if key is None else str(key)


# --- the flags


def flags(config: Config, name: str = "the merged configuration") -> list[str]:
    """Returns the kube-apiserver's flags: `--key=value` for each value, sorted by key."""
    arguments = _arguments(config, name)
    for key, values in _derived(config, name).items():
        arguments.setdefault(key, values)
    return [f"--{key}={value}" for key in sorted(arguments) for value in arguments[key]]


def _arguments(config: Config, name: str) -> dict[str, list[str]]:
    given = _mapping(config, "apiServerArguments", name)
    found: dict[str, list[str]] = {}
    for key, values in given.items():
        path = f"apiServerArguments.{key}"
        if values is None or values == []:
            continue  # no values: the derived flag is used
        if not isinstance(values, list):
            hint = f'write ["{values}"]'
            raise OperatorError(
                f"{path}: invalid type: list required, not {values!r}", subject=name, hint=hint
            )
        found[key] = [_argument(value, f"{path}[{index}]", name) for index, value in enumerate(values)]
    return found


def _argument(value: object, path: str, name: str) -> str:
    if not isinstance(value, str):
        hint = "quote it"
        raise OperatorError(f"{path}: invalid type: string required, not {value!r}", subject=name, hint=hint)
    return value


def _derived(config: Config, name: str) -> dict[str, list[str]]:
    """Returns the flags that the kube-apiserver derives from other fields."""
    serving = _mapping(config, "servingInfo", name)
    host, port = _split_bind_address(serving.get("bindAddress") or "", name)
    return {
        "admission-control-config-file": [ADMISSION_FILE],
        **_audit(_mapping(config, "auditConfig", name)),
        "bind-address": [host],
        "cors-allowed-origins": _texts(config, "corsAllowedOrigins"),
        "secure-port": [port],
        "service-account-key-file": _texts(config, "serviceAccountPublicKeyFiles"),
        "service-cluster-ip-range": [str(config.get("servicesSubnet") or "")],
        "tls-cipher-suites": _texts(serving, "cipherSuites") or list(DEFAULT_CIPHER_SUITES),
        "tls-min-version": [str(serving.get("minTLSVersion") or DEFAULT_TLS_VERSION)],
        "tls-sni-cert-key": [_sni(entry) for entry in serving.get("namedCertificates") or []],
    }


def _audit(audit: Mapping[str, Any]) -> dict[str, list[str]]:
    if not audit.get("enabled"):
        return {}
    policy = audit.get("policyFile") or ""
    if not policy and audit.get("policyConfiguration"):
        policy = "openshift.local.audit/policy.yaml"
    found = {
        "audit-log-maxbackup": audit.get("maximumRetainedFiles") or 0,
        "audit-log-maxsize": audit.get("maximumFileSizeMegabytes") or 0,
        "audit-log-maxage": audit.get("maximumFileRetentionDays") or 0,
        "audit-log-path": audit.get("auditFilePath") or "-",
        "audit-policy-file": policy,
        "audit-log-format": audit.get("logFormat") or "",
        "audit-webhook-mode": audit.get("webHookMode") or "",
    }
    named = {key: [str(value)] for key, value in found.items() if value != ""}
    return {**named, "audit-webhook-config-file": [str(audit.get("webHookKubeConfig") or "")]}


def _sni(entry: Mapping[str, Any]) -> str:
    names = ",".join(entry.get("names") or [])
    return f"{entry.get('certFile', '')},{entry.get('keyFile', '')}{':' if names else ''}{names}"


def _split_bind_address(text: str, name: str) -> tuple[str, str]:
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (":" in host and not bracketed):
        hint = "for example 0.0.0.0:6443 or [::]:6443"
        message = f"servingInfo.bindAddress: invalid address {text!r}"
        raise OperatorError(message, subject=name, hint=hint)
    return host.strip("[]"), port


def _mapping(config: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise OperatorError(f"{key}: invalid type: mapping required, not {value!r}", subject=name)
    return value


def _texts(config: Mapping[str, Any], key: str) -> list[str]:
    return [str(value) for value in config.get(key) or []]


# --- changes


def changes(before: Config, after: Config) -> list[ConfigChange]:
    """Returns the changed fields, sorted by path. Lists are compared as a whole."""
    return sorted(_changes(before, after, ""), key=lambda change: change.path)


def _changes(before: Config, after: Config, path: str) -> Iterator[ConfigChange]:
    for key in before.keys() | after.keys():
        where = f"{path}.{key}"
        if key not in before:
            yield ConfigChange(where, None, after[key], "added")
        elif key not in after:
            yield ConfigChange(where, before[key], None, "removed")
        elif isinstance(before[key], dict) and isinstance(after[key], dict):
            yield from _changes(before[key], after[key], where)
        elif type(before[key]) is not type(after[key]) or before[key] != after[key]:
            yield ConfigChange(where, before[key], after[key], "changed")
