"""Secrets of real shape from many sources vanish; what a diagnosis needs stays."""

from __future__ import annotations

import base64
import gzip

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.common.redaction import GONE, NOT_TEXT, Redactor
from bootbridge.common.secret_names import is_secret
from tests.common.secrets_corpus import CORPUS, filled

SEEDS = range(5)


def left(secrets: list[str], cleaned: bytes) -> list[str]:
    """Returns secrets of which eight characters in a row, or the whole, are still there."""
    text = cleaned.decode()
    return [
        secret
        for secret in secrets
        for piece in {secret[at : at + 8] for at in range(0, max(1, len(secret) - 7), 4)}
        if piece in text
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("source", list(CORPUS))
def test_every_secret_vanishes_and_the_rest_stays(source: str, seed: int) -> None:
    text, secrets = filled(CORPUS[source].text, seed)
    cleaned = Redactor().clean(text.encode())
    assert left(secrets, cleaned) == []
    assert [each for each in CORPUS[source].kept if each not in cleaned.decode()] == []


@pytest.mark.parametrize("source", list(CORPUS))
def test_each_line_alone_is_enough_unless_the_value_is_on_another(source: str) -> None:
    """As a log reader hands them on. Pairs and blocks need their first line."""
    text, _ = filled(CORPUS[source].text, 1)
    lines = text.splitlines(keepends=True)
    template = CORPUS[source].text.splitlines()
    by_line = [Redactor().clean(line.encode()).decode() for line in lines]
    for line, cleaned in zip(template, by_line, strict=True):
        if "<<" in line and ("value" not in line.lower() and ":" in line and "KEY-----" not in line):
            assert GONE in cleaned, line


@pytest.mark.parametrize("source", list(CORPUS))
def test_redacting_twice_is_redacting_once(source: str) -> None:
    text, _ = filled(CORPUS[source].text, 1)
    once = Redactor().clean(text.encode())
    assert Redactor().clean(once) == once


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_another_encoding_hides_no_secret(encoding: str) -> None:
    text, secrets = filled(CORPUS["shell, ps, rc files"].text, 1)
    cleaned = Redactor().clean(text.encode(encoding))
    assert left(secrets, cleaned) == []
    assert "OS_USERNAME=admin" in cleaned.decode("utf-8-sig")


def test_an_environment_block_of_the_kernel_is_redacted() -> None:
    """/proc/PID/environ has null bytes in place of line ends."""
    cleaned = Redactor().clean(b"A=b\0DB_PASSWORD=correct horse\0HOME=/root\0")
    assert cleaned == b"A=b\nDB_PASSWORD=[redacted]\nHOME=/root\n"


S = "Tr0ub4dorAnd3"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"command:\n- run\n- --password\n- {S}\n", id="flag and value as two items"),
        pytest.param(f'- "--password"\n- "{S}"\n', id="two quoted items"),
        pytest.param(f'log: "args": [\n  "--password",\n  "{S}"\n]\n', id="two items of JSON in a log"),
        pytest.param(f"run\0--password\0{S}\0", id="/proc/PID/cmdline"),
        pytest.param(f"run --password \\\n  {S} --x\n", id="a command on two lines"),
        pytest.param(f"run -password {S}\n", id="a flag with one dash"),
        pytest.param(f"password: abc def\n  {S}\nnext: 1\n", id="a long string that YAML breaks"),
        pytest.param(f'- password: "abc\n    {S}"\n  next: 1\n', id="a long quoted string"),
        pytest.param(f"passwords:\n- {S}\n- x\n", id="a list in YAML"),
        pytest.param(f'log: "passwords": [\n  "{S}"\n]\n', id="a list in JSON in a log"),
        pytest.param(f'password = """\n{S}"""\n', id="TOML"),
        pytest.param(f"machine h\n  login u\n  password {S}\n", id="netrc on several lines"),
        pytest.param(f"curl -uadmin:{S} https://h\n", id="curl -uNAME"),
        pytest.param(f"COMMAND=/usr/bin/oc login -u kubeadmin -p {S} https://h\n", id="oc login -p"),
        pytest.param(f"sshpass -p {S} ssh h\n", id="sshpass"),
        pytest.param(f"skopeo copy --src-creds user:{S} a b\n", id="skopeo"),
        pytest.param(f"kubectl create secret generic x --from-literal=a={S}\n", id="--from-literal"),
        pytest.param(f"HTTPS_PROXY=user:{S}@proxy:3128\n", id="a proxy without a scheme"),
        pytest.param(f"ENV DB_PASSWORD {S}\n", id="an image's history"),
        pytest.param(f"chpasswd:\n  list: |\n    root:{S}\n    core:{S}\n", id="a block of chpasswd"),
        pytest.param(f"chpasswd:\n  list:\n  - root:{S}\n  - 'core:{S}'\n", id="items of chpasswd"),
        pytest.param(f"[wifi-security]\npsk={S}\n", id="NetworkManager"),
        pytest.param(f"DBPASS={S}\n", id="a name without a separator"),
        pytest.param(f"user:{{SSHA}}{S}Tr0ub4dor\n", id="a hash of LDAP"),
        pytest.param(f"https://hooks.slack.com/services/T0000000/B0000000/{S}\n", id="a web hook"),
        pytest.param(f'"source":"data:,DB_PASSWORD%3D{S}%0A"\n', id="a data URL"),
        pytest.param(f'"source":"data:,PROXY%3Dhttp%3A%2F%2Fu%3A{S}%40p"\n', id="a URL in a data URL"),
    ],
)
def test_a_secret_in_a_less_common_form_vanishes(text: str) -> None:
    cleaned = Redactor().clean(text.encode())
    assert left([S], cleaned) == []
    assert Redactor().clean(cleaned) == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "- --use-service-account-credentials=true\n- --v=2\n",
        "- --enable-bootstrap-token-auth\n- --v=2\n",
        "imagePullSecrets:\n- name: registry\nsecrets:\n- registry\n- other-name\n",
        "topologyKeys:\n- kubernetes.io/hostname\n",
        "resources:\n- secrets\n- pods\nverbs:\n- get\n",
        "volumes:\n- secret:\n    secretName: tls\n  name: tls\n",
        "tls-private-key: /etc/kubernetes/pki/a.key\n  mode: 1\n",
        "--tls-private-key-file\n/etc/kubernetes/pki/a.key\n",
        "bypass=1\ncompass: north\n",
        "quay.io/a/b:tag@sha256:0123456789abcdef0123456789abcdef\n",
    ],
)
def test_a_name_or_a_path_in_such_a_form_stays(text: str) -> None:
    assert Redactor().clean(text.encode()).decode() == text


@pytest.mark.parametrize(
    "data", [gzip.compress(b"password=abc", mtime=0), b"\x7fELF\x02\x01\0\0\x03password=a", b"\xff\xfea"]
)
def test_what_is_not_text_is_withheld(data: bytes) -> None:
    assert Redactor().clean(data) == NOT_TEXT


def test_a_control_character_in_a_log_hides_no_name_and_withholds_nothing() -> None:
    cleaned = Redactor().clean(b"line\n" * 50 + b"pass\x01word=hunter2hunter2\n")
    assert cleaned == b"line\n" * 50 + b"password=[redacted]\n"


def test_colours_do_not_hide_a_name() -> None:
    assert b"hunter2" not in Redactor().clean(b"pass\x1b[1mword\x1b[0m=hunter2hunter2\n")


def test_a_named_secret_inside_base64_is_removed() -> None:
    encoded = base64.b64encode(b"[client]\nuser=root\npassword=hunter2hunter2\n")
    assert encoded[:20] not in Redactor().clean(b"my.cnf: data:;base64," + encoded + b"\n")


@pytest.mark.parametrize(
    "text",
    [
        f"machine h login u password {S}\n",
        f"db:5432:app:u:{S}\n",
        f"chpasswd:\n  list: |\n    root:{S}\n",
        f"root:$6$abcdefgh${S}Tr0ub4dorAnd3:1:0\n",
    ],
)
def test_a_secret_of_another_form_inside_base64_is_removed(text: str) -> None:
    encoded = base64.b64encode(text.encode())
    assert encoded[:20] not in Redactor().clean(b"content: " + encoded + b"\n")


def test_compressed_data_inside_base64_are_withheld() -> None:
    """As Ignition and cloud-init write files with `compression: gzip`."""
    encoded = base64.b64encode(gzip.compress(b"token: abc", mtime=0))
    assert Redactor().clean(b'"source": "data:;base64,' + encoded + b'"\n') == (
        b'"source": "data:;base64,' + GONE.encode() + b'"\n'
    )


def test_redacted_json_and_yaml_stay_valid() -> None:
    text, _ = filled(CORPUS["kubectl get -o json"].text, 1)
    assert yaml.safe_load(Redactor().clean(text.encode()))["items"][0]["kind"] == "Pod"
    text, _ = filled(CORPUS["kubeadm's kube-apiserver manifest"].text, 1)
    container = yaml.safe_load(Redactor().clean(text.encode()))["spec"]["containers"][0]
    assert container["env"][3] == {"name": "DB_PASSWORD", "value": [GONE[1:-1]]}
    assert container["env"][4] == {"name": "OIDC_CLIENT_SECRET", "value": GONE}


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "DB_PASSWORD",
        "dbPassword",
        "db-password",
        "X-Auth-Token",
        "clientSecret",
        "tls.key",
        "accesstoken",
        "secretAccessKey",
        "SECRET_VALUE",
        "passwordHash",
        "apikey",
        "TOKEN2",
        "AccountKey",
        "MYSQL_PWD",
        "DB_PASS",
    ],
)
def test_a_secret_name(name: str) -> None:
    assert is_secret(name, "hunter2hunter2")
    assert not is_secret(name, "true")


@pytest.mark.parametrize(
    "name",
    [
        "secretName",
        "tls-private-key-file",
        "token_reviews_total",
        "tokenReview",
        "publicKey",
        "topologyKey",
        "monkey",
        "TOKEN_URL",
        "secretRef",
        "keyUsage",
        "authority",
        "author",
        "pass",
        "tokenExpirationSeconds",
        "key",
        "path",
    ],
)
def test_a_name_that_is_not_secret(name: str) -> None:
    assert not is_secret(name, "hunter2hunter2")


TEXTS = st.lists(
    st.sampled_from(
        [
            "password",
            "TOKEN",
            "key",
            "name",
            "value",
            ":",
            "=",
            " ",
            "\n",
            '"',
            "'",
            "\\",
            "|",
            ",",
            "{",
            "[",
            "]",
            "<",
            ">",
            "  ",
            "- ",
            "--",
            "://",
            "@",
            "secret_x",
            "hunter2",
            "\x00",
            "\x1b[0m",
            "bearer ",
            "é",
        ]
    ),
    max_size=40,
).map("".join)


@given(TEXTS)
def test_any_text_is_redacted_without_an_error(text: str) -> None:
    Redactor().clean(text.encode())


@given(TEXTS, st.sampled_from(["password", "DB_PASSWORD", "x-auth-token", "client_secret"]))
def test_a_line_of_its_own_is_redacted_after_any_text(before: str, name: str) -> None:
    """As it would be without it, unless the text before it removes more."""
    cleaned = Redactor().clean(f"{before}\n{name}=Tr0ub4dor and 3\n".encode())
    assert b"Tr0ub4dor" not in cleaned
