"""Secrets without a secret name beside them vanish in every form; public texts of similar forms stay."""

from __future__ import annotations

import base64

import pytest

from bootbridge.common.redaction import Redactor
from bootbridge.trust.authority import Authority

S = "Tr0ub4dorAnd3Zq"
B64 = base64.b64encode(bytes(range(7, 55))).decode()  # 64 characters
WG_KEY = base64.b64encode(bytes(range(100, 132))).decode()
WG_PUBLIC = base64.b64encode(bytes(range(32))).decode()
LETTERS = "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789aBcDeFgHiJkLmNoPqRsT"
UPPER = LETTERS.upper()
HEX = "0123456789abcdef" * 4
PPK_HEAD = "PuTTY-User-Key-File-3: ssh-rsa\nEncryption: none\nPublic-Lines: 1\nAAAAB3NzaC1yc2EA\n"
PPK = f"{PPK_HEAD}Private-Lines: 2\n{B64}\n{B64[:60]}\nPrivate-MAC: 00aa\n"

SECRETS = {
    "PuTTY": (PPK, B64),
    "PuTTY in JSON": ('{"k":"' + PPK.replace("\n", "\\n") + '"}', B64),
    "PuTTY in a block of YAML": ("k: |\n  " + PPK.replace("\n", "\n  "), B64),
    "PuTTY without its end": (f"Private-Lines: 2\n{B64}\n", B64),
    "PuTTY without its beginning": (f"{B64}\n{B64}\nPrivate-MAC: 00aa\n", B64),
    "PuTTY in base64": (
        base64.b64encode(PPK.encode()).decode(),
        base64.b64encode(PPK.encode()).decode()[99:],
    ),
    "SSH2": (f"---- BEGIN SSH2 PRIVATE KEY ----\n{B64}\n---- END SSH2 PRIVATE KEY ----\n", B64),
    "OpenVPN": (
        f"-----BEGIN OpenVPN Static key V1-----\n{HEX}\n-----END OpenVPN Static key V1-----\n",
        HEX,
    ),
    "Oracle URL": (f"url=jdbc:oracle:thin:scott/{S}@//db:1521/svc\n", S),
    "Oracle URL, quoted password": (f'jdbc:oracle:oci:scott/"{S}"@db:1521:orcl\n', S),
    "sqlplus": (f"sqlplus -s scott/{S}@db\n", S),
    "cifs, pass": (f"//h/s /mnt cifs user=bob,pass={S},vers=3.0 0 0\n", S),
    "cifs, pass first": (f"mount -o pass={S},vers=3,user=bob //h/s /mnt\n", S),
    "cifs, password2": (f"mount -t cifs -o user=bob,password2={S} //h/s /mnt\n", S),
    "cifs, user%password": (f"mount -t cifs -o username=bob%{S},vers=3 //h/s /mnt\n", S),
    "smbclient": (f"smbclient //h/s -U bob%{S}\n", S),
    "snmpd, rocommunity": (f"rocommunity {S} 10.0.0.0/8\n", S),
    "snmpd, com2sec": (f"com2sec user default {S}\n", S),
    "snmpd, trapsink": (f"trap2sink 10.0.0.1 {S}\n", S),
    "snmpd, user": (f"createUser bob SHA {S} AES\n", S),
    "snmpwalk -c": (f"snmpwalk -v2c -c {S} 10.0.0.1 sysName\n", S),
    "snmpwalk -A": (f"snmpwalk -v3 -u bob -a SHA -A {S} -x AES -X x1 10.0.0.1\n", S),
    "snmpwalk -X": (f"snmpwalk -v3 -u bob -a SHA -A x1 -x AES -X {S} 10.0.0.1\n", S),
    "snmp exporter": (f"auths:\n  a:\n    community: {S}\n", S),
    "Vault, unseal key": (f"Unseal Key 1: {WG_KEY}\n", WG_KEY),
    "Vault, unseal key in JSON": ('{"unseal_keys_b64": ["' + WG_KEY + '"]}', WG_KEY),
    "Vault, unseal key in hex": ('log {"unseal_keys_hex": ["' + HEX + '"]}', HEX),
    "Vault, command": (f"vault operator unseal -address=https://v {WG_KEY}\n", WG_KEY),
    "Vault, root token": (f"found hvs.{LETTERS} there\n", LETTERS),
    "Vault, old root token": (f"found s.{LETTERS[:24].replace('W', '7')} there\n", "AbCdEfGhIjKlMnOp"),
    "Vault, recovery token": (f"found hvr.{LETTERS} there\n", LETTERS),
    "Slack, of a browser": (f"xoxc-{LETTERS}\n", LETTERS),
    "Slack, workflow": (f"https://hooks.slack.com/workflows/T0/A0/{LETTERS}\n", LETTERS),
    "GitHub": (f"gho_{LETTERS}\n", LETTERS),
    "AWS, ID": (f"ACCA{UPPER[:16]} there\n", UPPER[:16]),
    "AWS, CSV": (f"AKIA{UPPER[:16]},{LETTERS[:40]}\n", LETTERS[:40]),
    "AWS, table": (f"Secret Access Key | {LETTERS[:40]}\n", LETTERS[:40]),
    "Google, refresh token": (f"got 1//0{LETTERS}\n", LETTERS),
    "Google, HMAC": (f"GOOG1E{UPPER}\n", UPPER),
    "Azure, account": (f'"AccountName=l;AccountKey={B64};EndpointSuffix=x"', B64),
    "Azure, SAS": (f"sent SharedAccessSignature sr=n&sig={LETTERS}%3D&se=1\n", LETTERS),
    "Azure, application": (f"found abc8Q~{LETTERS[:34]} there\n", LETTERS[:34]),
    "pull secret in YAML": (f"auths:\n  quay.io:\n    auth: {B64}\n", B64),
    "Basic, short": ("header Basic dTpw\n", "dTpw"),
    "Basic, letters only": ("header Basic " + base64.b64encode(b"aq:ixgi").decode() + "\n", "YXE6aXhnaQ"),
    "bcrypt": (f"x $2b$12${LETTERS[:53]} y\n", LETTERS[:53]),
    "crypt in a shell": (f'x "\\$6\\$abcdefgh\\${LETTERS}" y\n', LETTERS),
    "crypt in Compose": (f"x $$6$$abcdefgh$${LETTERS} y\n", LETTERS),
    "sha1crypt": (f"x $sha1$40000$abcdefgh${LETTERS[:28]} y\n", LETTERS[:28]),
    "Django": (f"x pbkdf2_sha256$600000$abcdef${WG_KEY} y\n", WG_KEY),
    "SCRAM": (f"SCRAM-SHA-256$4096:abcdefgh==${WG_KEY}:{WG_KEY}\n", WG_KEY),
    "GRUB": (f"grub.pbkdf2.sha512.10000.{HEX.upper()}.{HEX.upper()}\n", HEX.upper()),
    "DES in /etc/shadow": ("root:abQ1w2E3r4T5y:19000:0:99999:7:::\n", "Q1w2E3r4T5y"),
    "age, post-quantum": (f"AGE-SECRET-KEY-PQ-1{UPPER}\n", UPPER),
    "WireGuard, dump": (f"wg0\t{WG_KEY}\t{WG_PUBLIC}\t51820\toff\n", WG_KEY),
    "WireGuard, dump of a peer": (f"wg0\t{WG_PUBLIC}\t{WG_KEY}\t10.0.0.1:1\t10.0.0.0/8\n", WG_KEY),
    "WireGuard, netplan": (f"keys:\n  private: {WG_KEY}\n", WG_KEY),
    "WireGuard, shell": (f"echo {WG_KEY} | wg pubkey\n", WG_KEY),
    "FRR": (f" neighbor 10.0.0.1 password {S}\n", S),
    "a chat's web hook": (f"https://discord.com/api/webhooks/123456/{LETTERS}\n", LETTERS),
}


@pytest.mark.parametrize("form", list(SECRETS))
def test_a_secret_in_its_format_is_removed(form: str) -> None:
    """Also inside a line of a log, and a second pass changes nothing."""
    text, secret = SECRETS[form]
    cleaned = Redactor().clean(text.encode())
    pieces = {secret[at : at + 8] for at in range(0, max(1, len(secret) - 7), 4)}
    assert [piece for piece in pieces if piece in cleaned.decode()] == []
    assert Redactor().clean(cleaned) == cleaned


@pytest.mark.parametrize(
    ("form", "kept"),
    [
        ("PuTTY", PPK_HEAD),
        ("PuTTY", "Private-MAC: 00aa"),
        ("Oracle URL", "@//db:1521/svc"),
        ("cifs, pass", ",vers=3.0 0 0"),
        ("snmpwalk -c", "10.0.0.1 sysName"),
        ("WireGuard, dump", WG_PUBLIC),
        ("WireGuard, dump of a peer", WG_PUBLIC),
        ("FRR", "neighbor 10.0.0.1 password "),
    ],
)
def test_what_is_around_a_secret_stays(form: str, kept: str) -> None:
    assert kept in Redactor().clean(SECRETS[form][0].encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        Authority.create("a").cert_pem.decode(),
        f"certificate-authority-data: {base64.b64encode(Authority.create('a').cert_pem).decode()}\n",
        f"image: quay.io/openshift/release@sha256:{HEX}\nimageID: docker-pullable://a/b@sha256:{HEX}\n",
        f"sha256:{HEX}  a.tar\n{HEX}  b.tar\n{HEX[:40]} refs/heads/main\n",
        "uid: 6f1c2a34-9e1b-4c53-8a55-0d5d7b1f8c11\nresourceVersion: '123456'\n",
        "x-kubernetes-pod: coredns-668d6bf9bc-x2x7p_kube-system_6f1c2a34-9e1b-4c53-8a55-0d5d7b1f8c11_0\n",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAbCdEfGhIjKlMnOpQrStUvWxYz0123456789aBcDe core\n",
        f"  public key: {WG_PUBLIC}\npeer: {WG_PUBLIC}\n  latest handshake: 1 minute ago\n",
        f"SHA256:{B64[:43]} root@node (ED25519)\nSubject Key Identifier: 3A:1F:00\n",
        "W0000 snmpd -c /etc/snmp/snmpd.conf -Lsd\nsnmpd[12]: Connection from UDP: [10.0.0.1]\n",
        "communities:\n- 65000:100\n- no-export\ncommunity: 65535:65282\nsee the community: https://example.com\n",
        "bgp community: no-advertise\n",
        "test result pass=3 fail=1\ncpu user=5%,sys=2%\nGET /login?user=foo%40example.com\n",
        "jdbc:oracle:thin:@//db:1521/svc\nmount -t cifs -o credentials=/etc/smb.creds,uid=0 //h/s /mnt\n",
        'basic authentication\nbasic auth\nBasic Constraints\n"Basic test" mode\n',
        "run $1 then $2; awk '{print $1$2}'; cost $5 and $6\n",
        "vault operator unseal\nvault login -method=kubernetes role=bootbridge-agent\nunsealed: true\n",
        "at s.reconcileEverythingInTurn(0x1)\nat s.newConnectionFromAgentNow()\n",
        "https://example.com/a1//0b\nneighbor 10.0.0.1 remote-as 65000\nprivate: true\nshared: false\n",
        "class TokenBase:\n    __slots__ = ()\n",
    ],
)
def test_a_public_text_of_a_similar_format_stays(text: str) -> None:
    assert Redactor().clean(text.encode()).decode() == text
