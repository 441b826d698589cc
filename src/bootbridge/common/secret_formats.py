"""Removes secrets that are recognised by their format, without a secret name beside them.

Tokens with a vendor's prefix, password hashes, keys, arguments of commands, options of mounts, and lines of
configuration files. Every repetition is bounded, so that the time grows linearly with the text.
"""

from __future__ import annotations

import re
from typing import Final

from bootbridge.common.named_values import GONE

# The vendors' prefixes.
_VENDOR_TOKEN: Final = re.compile(
    rb"\b(?:gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[a-z]-[A-Za-z0-9-]{10,}"
    rb"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}|GOOG1[A-Z0-9]{50,}"
    rb"|hv[bsr]\.[A-Za-z0-9_-]{20,}|b\.AAAAAQ[A-Za-z0-9_-]{60,}"
    rb"|npm_[A-Za-z0-9]{30,}|dckr_[op]at_[A-Za-z0-9_-]{20,}|sk-[A-Za-z0-9_-]{32,}|SG\.[A-Za-z0-9_-]{16,128}\.[A-Za-z0-9_-]{16,}"
    rb"|gl(?:ptt|dt|rt|cbt|imt|ft|soat)-[A-Za-z0-9_-]{16,}|pypi-[A-Za-z0-9_-]{32,}|GOCSPX-[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{30,}"
    rb"|(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{20,}|do[opr]_v1_[0-9a-f]{40,}|ATATT3[A-Za-z0-9_=-]{40,}|xapp-[A-Za-z0-9-]{20,}"
    rb"|LTAI[A-Za-z0-9]{16,}|AGE-SECRET-KEY-(?:PQ-)?1[A-Z0-9]{40,}|gl(?:sa|c)_[A-Za-z0-9_]{32,}|dapi[0-9a-f]{32}"
    rb"|hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/]{20,})"
)
# Azure: the secret of an application. Its mark is in the middle. Google: a refresh token.
_AZURE_SECRET: Final = re.compile(
    rb"(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.-]{3}[78]Q~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~-])"
)
_GOOGLE_REFRESH: Final = re.compile(rb"(?<![A-Za-z0-9/:])1//0[A-Za-z0-9_-]{30,}")
# Vault before 1.10. With a digit and a capital: a name in a program may have 24 letters as well.
_OLD_VAULT_TOKEN: Final = re.compile(
    rb"(?<![A-Za-z0-9_.-])s\.(?=[A-Za-z]{0,23}[0-9])(?=[a-z0-9]{0,23}[A-Z])"
    rb"[A-Za-z0-9]{24}(?:\.[A-Za-z0-9]{5})?(?![A-Za-z0-9_-])"
)
# As in /etc/shadow. In shells, templates and Compose files each `$` is escaped or doubled.
_CRYPT_HASH: Final = re.compile(
    rb"\${1,2}(?:(?:1|2[abxy]?|5|6|7|8|9|y|gy|apr1|argon2[a-z]{0,2})\\{0,8}\${1,2}"
    rb"|(?:md5|sha1|scrypt|pbkdf2|(?:pbkdf2|bcrypt)-sha(?:1|256|512))\\{0,8}\${1,2}[A-Za-z0-9./,=+-]{1,64}\\{0,8}\${1,2})"
    rb"[A-Za-z0-9./,=$\\+-]{8,256}"
)
_PASSWORD_HASH: Final = re.compile(
    rb"\{S?SHA(?:256|512)?\}[A-Za-z0-9+/=]{16,256}"
    rb"|pbkdf2_sha(?:1|256|512)\$[0-9]{1,9}\$[A-Za-z0-9]{1,64}\$[A-Za-z0-9+/=]{16,128}"
    rb"|(?:pbkdf2:sha(?:1|256|512):[0-9]{1,9}|scrypt:[0-9]{1,9}:[0-9]{1,3}:[0-9]{1,3})"
    rb"\$[A-Za-z0-9]{1,64}\$[0-9a-f]{32,256}"
    rb"|SCRAM-SHA-(?:1|256|512)\$[0-9]{1,9}:[A-Za-z0-9+/=]{8,128}\$[A-Za-z0-9+/=]{16,128}:[A-Za-z0-9+/=]{16,128}"
    rb"|grub\.pbkdf2\.sha512\.[0-9]{1,9}\.[0-9A-F]{32,512}\.[0-9A-F]{32,512}"
)

# `oc login -p`, `podman login -p`, `sshpass -p`, `mysql -p`, `ipmitool -P`, `ldapsearch -w`, `redis-cli -a`.
_LOGIN: Final = re.compile(
    rb"""((?:\b(?:login|sshpass|mysql\w{0,16}|mongo\w{0,16}|racadm|subscription-manager)\b"""
    rb"""[^\n]{0,200}?[ \t]-p"""
    rb"""|\bipmitool\b[^\n]{0,200}?[ \t]-P|\bldap[a-z]{1,16}\b[^\n]{0,200}?[ \t]-w"""
    rb"""|\bredis-cli\b[^\n]{0,200}?[ \t]-a)[ \t=]{0,8}["']?)[^\s"'-][^\s"']{0,255}"""
)
# `echo … | chpasswd`, `echo … | podman login --password-stdin`, `echo … | wg pubkey`.
_PIPED: Final = re.compile(
    rb"""(\b(?:echo|printf)[ \t]{1,8}(?:-[neE]{1,3}[ \t]{1,8})?["']?)[^\s"'|]{1,512}"""
    rb"""(?=["']?[ \t]{0,8}["']?\|[^\n]{0,200}?"""
    rb"""(?:--password-stdin|--stdin|\bchpasswd\b|\bwg[ \t]|\bkinit\b|\bcryptsetup\b))"""
)
# Settings whose value follows after a blank.
_SETTING: Final = re.compile(
    rb"""(?m)(^[ \t]{0,80}(?:bindpw|rootpw|requirepass|masterauth|auth_pass|wpa-psk"""
    rb"""|neighbor[ \t]{1,8}\S{1,64}[ \t]{1,8}password)[ \t]{1,20}["']?)[^\s"']{1,256}"""
)

# --- databases

# scott/tiger@//db:1521/service, also with a quoted password.
_ORACLE_PASSWORD: Final = rb"""(?:\\{0,8}"[^"\n]{1,256}"|[^\s"'<>]{1,256})"""
_ORACLE_URL: Final = re.compile(
    rb"""(\bjdbc:oracle:[A-Za-z0-9]{1,16}:\\{0,8}["']?[^\s/@:"']{1,128}/)""" + _ORACLE_PASSWORD + rb"(?=@)"
)
_ORACLE_COMMAND: Final = re.compile(
    rb"""(?m)(\b(?:sqlplus|sqlldr|sqlcl|rman|expdp|impdp)\b[^\n]{0,200}?"""
    rb"""[ \t](?:userid=)?["']?[A-Za-z][A-Za-z0-9_$#]{0,63}/)"""
    + _ORACLE_PASSWORD
    + rb"""(?=@|["']?[ \t]{0,8}(?:\r?$|[aA][sS][ \t]))"""
)

# --- mounts

# The short name of password=, only beside a user: a test may print pass=3.
_CIFS_PASS: Final = re.compile(
    rb"""((?:\bcifs\b[^\n]{0,200}?|\buser(?:name)?=[^\s"']{0,256}?)[\s,"']pass=)[^\s,"']{1,256}"""
)
_CIFS_PASS_FIRST: Final = re.compile(
    rb"""((?<![A-Za-z0-9_-])pass=)[^\s,"']{1,256}(?=,(?:[^\s"']{0,256},)?user(?:name)?=)"""
)
# user=NAME%PASSWORD, and -U of smbclient and net; in a URL the percent sign encodes a character.
_USER_PERCENT: Final = re.compile(
    rb"""((?:(?<![?&A-Za-z0-9_])user(?:name)?="""
    rb"""|\b(?:smb[a-z]{1,16}|net|rpcclient|wmic)\b[^\n]{0,200}?[ \t](?:-U|--user)[ \t=]{0,8})"""
    rb"""["']?[A-Za-z][^\s%"',&]{0,127}%)[^\s"',&]{1,256}"""
)

# --- SNMP

_SNMP_SETTING: Final = re.compile(
    rb"""(?m)(^[ \t]{0,80}(?:r[ow]community6?[ \t]{1,80}|trapcommunity[ \t]{1,80}"""
    rb"""|authcommunity[ \t]{1,80}\S{1,64}[ \t]{1,80}|com2sec6?[ \t]{1,80}"""
    rb"""(?:-Cn[ \t]{1,8}\S{1,64}[ \t]{1,80})?\S{1,64}[ \t]{1,80}\S{1,64}[ \t]{1,80}"""
    rb"""|(?:trap2?|inform)sink[ \t]{1,80}\S{1,253}[ \t]{1,80}"""
    rb"""|snmp-server[ \t]{1,8}community[ \t]{1,8})["']?)[^\s"']{1,256}"""
)
_SNMP_USER: Final = re.compile(
    rb"""(?m)(^[ \t]{0,80}(?:createUser[ \t]{1,80}(?:-e[ \t]{1,80}\S{1,80}[ \t]{1,80})?\S{1,64}"""
    rb"""|usmUser)[ \t]{1,80})[^\r\n]{1,512}"""
)
# One expression for each option: a command may have several.
_SNMP_COMMUNITY: Final = re.compile(
    rb"""(\bsnmp(?!d\b|trapd\b)[a-z]{1,16}\b[^\n]{0,200}?[ \t]-c[ \t]{0,8}["']?)[^\s"'-][^\s"']{0,255}"""
)
_SNMP_AUTH: Final = re.compile(
    rb"""(\bsnmp(?!d\b|trapd\b)[a-z]{1,16}\b[^\n]{0,200}?[ \t]-A[ \t]{0,8}["']?)[^\s"'-][^\s"']{0,255}"""
)
_SNMP_PRIVACY: Final = re.compile(
    rb"""(\bsnmp(?!d\b|trapd\b)[a-z]{1,16}\b[^\n]{0,200}?[ \t]-X[ \t]{0,8}["']?)[^\s"'-][^\s"']{0,255}"""
)

# --- keys

# `vault operator init` prints them, with blanks in their names.
_UNSEAL_KEY: Final = re.compile(
    rb"""(?i)(\b(?:unseal|recovery) key(?: share)?(?: [0-9]{1,3})?"""
    rb"""["']?[ \t]{0,8}[:=][ \t]{0,8}["']?)[A-Za-z0-9+/]{16,256}={0,2}"""
)
_VAULT_COMMAND: Final = re.compile(
    rb"""(\bvault[ \t]{1,8}(?:operator[ \t]{1,8}unseal|login)[ \t]{1,8}"""
    rb"""(?:-[^\s]{1,128}[ \t]{1,8}){0,8}["']?)(?![^\s]{0,64}=[^\s=])[A-Za-z0-9+/._-]{16,512}={0,2}"""
)
# The secret key in the CSV and the tables of AWS, beside its ID.
_AWS_PAIR: Final = re.compile(
    rb"""((?:\b(?:AKIA|ASIA)[A-Z0-9]{16}|(?i:\bsecret access key))"""
    rb"""["']?[,;| \t]{1,80}["']?)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"""
)
# WireGuard: `wg show all dump` (an interface, a peer), netplan, and `wg set … private-key <(echo …)`.
_WG_INTERFACE: Final = re.compile(
    rb"(?m)(^(?:[A-Za-z0-9_.=+-]{1,15}\t)?)[A-Za-z0-9+/]{43}=(?=\t[A-Za-z0-9+/]{43}=\t[0-9]{1,5}\t)"
)
_WG_PEER: Final = re.compile(
    rb"(?m)(^(?:[A-Za-z0-9_.=+-]{1,15}\t)?[A-Za-z0-9+/]{43}=\t)[A-Za-z0-9+/]{43}=(?=\t)(?!\t[0-9]{1,5}\t)"
)
_WG_NETPLAN: Final = re.compile(rb"""(\b(?:private|shared):[ \t]{1,8}["']?)[A-Za-z0-9+/]{43}=""")
_WG_ECHO: Final = re.compile(rb"""((?:private|preshared)-key[ \t]{1,8}<\([^)\n]{0,64}?)[A-Za-z0-9+/]{43}=""")
# The one-way hash of an old /etc/shadow.
_DES_HASH: Final = re.compile(
    rb"(?m)(^[a-z_][a-z0-9_.-]{0,31}:)[!*]{0,2}[A-Za-z0-9./]{13}(?=:(?:[0-9]{5}|0?):[0-9]{0,6}:[0-9]{0,6}:)"
)
# A chat's web hook: who has its URL may write.
_WEB_HOOK: Final = re.compile(
    rb"(\b(?:discord(?:app)?\.com/api/webhooks/[0-9]{1,24}/|api\.telegram\.org/bot[0-9]{1,20}:"
    rb"|webhook\.office\.com/webhookb2/))[A-Za-z0-9_@/-]{20,512}"
)

_GONE: Final = GONE.encode()
# These are removed completely.
_WHOLE: Final = (
    _VENDOR_TOKEN,
    _AZURE_SECRET,
    _GOOGLE_REFRESH,
    _OLD_VAULT_TOKEN,
    _CRYPT_HASH,
    _PASSWORD_HASH,
)
# Of these the first group stays, and what follows it is removed. Some contain one of the above.
_VALUES: Final = (
    _AWS_PAIR,
    _VAULT_COMMAND,
    _LOGIN,
    _PIPED,
    _SETTING,
    _ORACLE_URL,
    _ORACLE_COMMAND,
    _CIFS_PASS,
    _CIFS_PASS_FIRST,
    _USER_PERCENT,
    _SNMP_SETTING,
    _SNMP_USER,
    _SNMP_COMMUNITY,
    _SNMP_AUTH,
    _SNMP_PRIVACY,
    _UNSEAL_KEY,
    _WG_INTERFACE,
    _WG_PEER,
    _WG_NETPLAN,
    _WG_ECHO,
    _DES_HASH,
    _WEB_HOOK,
)
# What each match contains. A text without it is not searched, which takes a tenth of the time.
_PART: Final = {
    _AZURE_SECRET: b"Q~",
    _GOOGLE_REFRESH: b"1//0",
    _OLD_VAULT_TOKEN: b"s.",
    _CRYPT_HASH: b"$",
    _VAULT_COMMAND: b"vault",
    _ORACLE_URL: b"jdbc:oracle:",
    _CIFS_PASS: b"pass=",
    _CIFS_PASS_FIRST: b"pass=",
    _USER_PERCENT: b"%",
    _SNMP_COMMUNITY: b"snmp",
    _SNMP_AUTH: b"snmp",
    _SNMP_PRIVACY: b"snmp",
    _WG_INTERFACE: b"=\t",
    _WG_PEER: b"=\t",
    _WG_ECHO: b"-key",
}
FORMATS: Final = (*_VALUES, *_WHOLE)


def without_formats(data: bytes) -> bytes:
    """Returns the text with a marker in place of each secret."""
    for pattern in _VALUES:
        if _PART.get(pattern, b"") in data:
            data = pattern.sub(rb"\1" + _GONE, data)
    for pattern in _WHOLE:
        if _PART.get(pattern, b"") in data:
            data = pattern.sub(_GONE, data)
    return data
