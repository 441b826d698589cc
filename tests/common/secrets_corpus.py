"""Files of the kinds that a log bundle meets, with secrets of real shape.

`<<shape>>` stands for a secret, which the test generates: fake, and different each time it occurs. A line
in `kept` is needed for a diagnosis and must stay.
"""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits

LOWER = ascii_lowercase + digits
MIXED = ascii_letters + digits
URL_SAFE = MIXED + "-_"
BASE64 = MIXED + "+/"


@dataclass(frozen=True)
class SecretSource:
    text: str
    kept: tuple[str, ...] = ()


def _run(alphabet: str, length: int) -> Callable[[random.Random], str]:
    return lambda rng: "".join(rng.choices(alphabet, k=length))


def _jwt(rng: random.Random) -> str:
    return "eyJhbGciOiJSUzI1NiIsImtpZCI6" + ".".join(_run(URL_SAFE, 60)(rng) for _ in range(3))


def _pem(rng: random.Random) -> str:
    return "\n".join(_run(BASE64, 64)(rng) for _ in range(3))


SHAPES: dict[str, Callable[[random.Random], str]] = {
    "password": lambda rng: _run(ascii_letters, 6)(rng) + _run("!#%*+.^~" + digits, 6)(rng) + "Zq",
    "odd password": lambda rng: "a," + _run(MIXED, 5)(rng) + ";b@" + _run(MIXED, 5)(rng) + "/c",
    "words": lambda rng: " ".join(_run(ascii_lowercase, 9)(rng) for _ in range(3)),
    "token": _run(URL_SAFE, 40),
    "base64": lambda rng: base64.b64encode(rng.randbytes(32)).decode(),
    "hex": _run("0123456789abcdef", 64),
    "bootstrap": lambda rng: f"{_run(LOWER, 6)(rng)}.{_run(LOWER, 16)(rng)}",
    "jwt": _jwt,
    "pem": _pem,
    "aws id": lambda rng: "AKIA" + _run(ascii_uppercase + digits, 16)(rng),
    "aws key": _run(BASE64, 40),
    "crypt": lambda rng: f"$6${_run(MIXED, 16)(rng)}${_run(MIXED + './', 86)(rng)}",
    "github": lambda rng: "ghp_" + _run(MIXED, 36)(rng),
    "google": lambda rng: "AIza" + _run(URL_SAFE, 35)(rng),
    "slack": lambda rng: "xoxb-" + _run(digits, 12)(rng) + "-" + _run(MIXED, 24)(rng),
    "uuid": lambda rng: "-".join(_run("0123456789abcdef", n)(rng) for n in (8, 4, 4, 4, 12)),
    "number": _run("123456789", 12),
}


def filled(text: str, seed: int) -> tuple[str, list[str]]:
    """Returns the text with secrets in place of the shapes, and the secrets."""
    rng, secrets = random.Random(seed), []

    def secret(found: re.Match[str]) -> str:
        secrets.append(SHAPES[found[1]](rng))
        return secrets[-1]

    return re.sub(r"<<([a-z0-9 ]+)>>", secret, text), secrets


KUBEADM_MANIFEST = """\
apiVersion: v1
kind: Pod
metadata:
  name: kube-apiserver
  annotations:
    kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint: 10.0.0.5:6443
spec:
  containers:
  - command:
    - kube-apiserver
    - --authorization-mode=Node,RBAC
    - --enable-bootstrap-token-auth=true
    - --tls-private-key-file=/etc/kubernetes/pki/apiserver.key
    - --service-account-key-file=/etc/kubernetes/pki/sa.pub
    - --etcd-keyfile=/etc/kubernetes/pki/apiserver-etcd-client.key
    - --token-auth-file=/etc/kubernetes/tokens.csv
    - --kubelet-client-key=/etc/kubernetes/pki/apiserver-kubelet-client.key
    env:
    - name: HTTPS_PROXY
      value: http://proxyuser:<<password>>@proxy.corp.example:3128
    - name: http_proxy
      value: http://svc:<<odd password>>@[2001:db8::7]:3128/
    - name: NO_PROXY
      value: 10.0.0.0/8,.svc
    - name: DB_PASSWORD
      value: <<words>>
    - name: OIDC_CLIENT_SECRET
      value: "<<token>>"
    volumeMounts:
    - mountPath: /etc/kubernetes/pki
      name: k8s-certs
  volumes:
  - name: tls
    secret:
      secretName: bootbridge-agent-tls
"""

POD_JSON = """\
{"apiVersion": "v1", "kind": "List", "items": [{"kind": "Pod", "spec": {
  "serviceAccountName": "builder", "automountServiceAccountToken": false,
  "imagePullSecrets": [{"name": "registry-credentials"}],
  "tolerations": [{"key": "node-role.kubernetes.io/master", "operator": "Exists"}],
  "affinity": {"topologyKey": "kubernetes.io/hostname"},
  "containers": [{"env": [
    {"name": "DB_PASSWORD",
     "value": "<<password>>"},
    {"value": "<<token>>", "name": "SLACK_TOKEN"},
    {"name": "dbPassword", "value": "with \\"quotes\\" <<password>>"},
    {"name": "PIN_SECRET", "value": <<number>>},
    {"name": "REPLICAS", "value": "3"},
    {"name": "PASSWORD_FILE", "value": "/run/secrets/db"},
    {"name": "API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "api", "key": "token"}}}]}]},
  "metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration":
    "{\\"spec\\":{\\"env\\":[{\\"name\\":\\"DB_PASSWORD\\",\\"value\\":\\"<<token>>\\"},{\\"name\\":\\"A\\",\\"value\\":\\"shown\\"}]}}"}}}]}
"""

DESCRIBE = """\
Name:             webhook-5f7b9c8d6-x2x7p
Service Account:  webhook
Mountable secrets:   webhook-dockercfg
    Environment:
      DB_PASSWORD:    <<words>>
      GITHUB_TOKEN:   <<github>>
      API_KEY:        <set to the key 'password' in secret 'db'>  Optional: false
      TOKEN_URL:      https://login.example/token
    Mounts:
      /var/run/secrets/kubernetes.io/serviceaccount from kube-api-access (ro)
Volumes:
  certs:
    Type:        Secret (a volume populated by a Secret)
    SecretName:  bootbridge-agent-tls
Events:
  Warning  FailedMount  MountVolume.SetUp failed for volume "certs" : secret "bootbridge-agent-tls" not found
"""

SYSTEMD = """\
[Service]
Environment="DB_PASSWORD=<<words>>" "MODE=bootstrap"
Environment=AZURE_CLIENT_SECRET=<<token>> OS_PASSWORD='<<password>>'
EnvironmentFile=/etc/sysconfig/app
ExecStart=/usr/bin/app --password <<password>> --api-token=<<token>> --key-file /etc/app/tls.key --port 80
Environment=HTTPS_PROXY=http://u:<<odd password>>@proxy:3128 NO_PROXY=.svc
"""

DOCKER_INSPECT = """\
[
    {
        "Id": "sha256:1111111111111111111111111111111111111111111111111111111111111111",
        "Config": {
            "Env": [
                "POSTGRES_PASSWORD=<<words>>",
                "AWS_SESSION_TOKEN=<<aws key>>",
                "JWT_SIGNING_KEY=<<base64>>",
                "PATH=/usr/local/bin:/usr/bin",
                "DB_PASS=say \\"<<password>>\\""
            ],
            "Labels": {"com.example.secret-name": "db"}
        }
    }
]
"""

SHELL = """\
export AWS_ACCESS_KEY_ID=<<aws id>>
export AWS_SECRET_ACCESS_KEY=<<aws key>>
declare -x OS_PASSWORD="<<words>>"
OS_USERNAME=admin
DB_PASSWORD=it's,<<odd password>>
VAULT_TOKEN='<<token>>'
SSH_KEY_PATH=/root/.ssh/id_ed25519
root  812  curl -u admin:<<password>> https://registry.example/v2/
root  813  kubeadm join 10.0.0.5:6443 --token <<bootstrap>> --certificate-key <<hex>>
root  814  app --client-secret=<<token>> --secret-name=db --verbose
machine git.example login ci password <<password>>
//registry.example/:_authToken=<<token>>
app.datasource.password = <<words>>
Server=db;Database=a;User Id=sa;Password=<<password>>;Encrypt=true
"""

KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters:
- name: c
  cluster: {server: "https://api.example:6443", certificate-authority: /etc/kubernetes/pki/ca.crt}
users:
- name: admin
  user:
    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem
    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem
- name: sa
  user:
    token: <<jwt>>
- name: basic
  user:
    username: root
    password: <<words>>
- name: key
  user:
    client-key-data: <<base64>>
- name: oidc
  user:
    auth-provider:
      config:
        client-id: kubernetes
        client-secret: <<uuid>>
        id-token: <<jwt>>
        refresh-token: <<token>>
        idp-issuer-url: https://idp.example
"""

CLOUD = """\
[default]
region = eu-west-1
aws_access_key_id = <<aws id>>
aws_secret_access_key = <<aws key>>
aws_session_token = <<base64>>

{"clientId": "app", "clientSecret": "<<token>>", "tenantId": "t", "subscriptionId": "s"}
{"type": "account", "private_key": "-----BEGIN PRIVATE KEY-----\\n<<base64>>\\n-----END PRIVATE KEY-----\\n"}
clouds:
  openstack:
    auth:
      auth_url: https://keystone.example:5000
      username: admin
      password: "<<password>>"
      application_credential_secret: <<token>>
DefaultEndpointsProtocol=https;AccountName=logs;AccountKey=<<base64>>;EndpointSuffix=core.windows.net
https://logs.blob.example/a?sv=2022&sig=<<base64>>
https://bucket.example/o?X-Amz-Credential=<<aws id>>&X-Amz-Signature=<<hex>>
gcp key <<google>> region=eu
"""

HTTP = """\
> POST /v3/auth/tokens HTTP/1.1
> Host: keystone.example
> Authorization: Basic <<base64>>
> Proxy-Authorization: Basic <<base64>>
< X-Auth-Token: <<token>>
< X-Subject-Token: <<token>>
< Set-Cookie: session=<<token>>; Path=/; HttpOnly
> Authorization: AWS4-HMAC-SHA256 Credential=<<aws id>>/2026/eu, SignedHeaders=host, Signature=<<hex>>
Decoded (b'x-auth-token', b'<<token>>')
I1117 12:00:00.000000 request.go: curl -H "Authorization: Bearer <<jwt>>" 'https://api.example:6443/api'
GET https://<<github>>@git.example/repo.git
GET /oauth?access_token=<<token>>
< WWW-Authenticate: Basic realm="Registry Realm"
"error": "basic authentication failed for TokenReview: tokenreviews.authentication.k8s.io is forbidden"
"""

INSTALL_CONFIG = """\
baseDomain: example.com
metadata:
  name: c
pullSecret: '{"auths":{"quay.example":{"auth":"<<base64>>","email":"a@example"}}}'
sshKey: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 core
proxy:
  httpsProxy: https://user:<<password>>@proxy.example:3129
platform:
  vsphere:
    vcenters:
    - server: vc.example
      user: administrator@vsphere.local
      password: <<words>>
passwd:
  users:
  - name: core
    passwordHash: <<crypt>>
additional: |
  root:<<crypt>>:19000:0:99999:7:::
kubeadmin-password: <<token>>
"""

LOGS = """\
12:00:00Z INFO connected agent=node0 token_reviews=4 key="kube-system/konnectivity-agent-7xk2p"
I1117 12:00:00 reflector.go] secret="kube-system/bootbridge-agent-tls" failed to watch secrets
{"level":"info","msg":"connecting","db":{"host":"db","password":"<<password>>"},"next":"shown"}
{"msg":"exec","args":"{\\"token\\":\\"<<token>>\\",\\"user\\":\\"bob\\"}"}
level=error msg="login failed password=<<password>> user=bob" code=401
time=1 config=map[password:<<password>> user:bob]
postgres://app:<<odd password>>@db.example:5432/app?sslmode=require failed
dial amqp://guest:<<password>>@mq.example: timeout
<credentials><user>bob</user><password><<password>></password></credentials>
slack <<slack>> posted
Subject: O=system:nodes, CN=system:node:node0
X509v3 Basic Constraints: critical
X509v3 Key Usage: critical, Digital Signature
Public-Key: (256 bit)
"""

ENCRYPTION = """\
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc:
      keys:
      - name: key1
        secret: <<base64>>
[Interface]
PrivateKey = <<base64>>
[Peer]
PublicKey = AAAAshownAAAAshownAAAAshownAAAAshownAAAAshow=
PresharedKey = <<base64>>
tls.key: |
  -----BEGIN EC PRIVATE KEY-----
  <<base64>>
  -----END EC PRIVATE KEY-----
smtp_password:
  <<words>>
db_passphrase: >-
  <<words>>
after: shown
ssh:
  key: <<base64>>
  port: 22
"""

CLOUD_INIT = """\
#cloud-config
password: <<words>>
chpasswd: {expire: false, list: ["root:<<password>>", core:<<token>>]}
users:
- name: core
  plain_text_passwd: <<password>>
  ssh_authorized_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 core]
runcmd:
- echo core:<<password>> | chpasswd
- echo '<<token>>' | podman login --password-stdin -u ci registry.example
- openssl rsa -passin pass:<<token>> -in /etc/app/tls.key
- ipmitool -I lanplus -H bmc.example -U admin -P <<password>> power status
- [ldapsearch, -x]
- ldapsearch -D cn=admin -w <<password>> -b dc=example
- mysqldump -u root -p<<token>> app
final_message: done
"""

IGNITION = """\
{"ignition": {"version": "3.2.0", "config": {"merge": [{"source": "https://api-int.example:22623/config/master",
  "httpHeaders": [{"name": "Authorization", "value": "Basic <<base64>>"}]}]}},
 "passwd": {"users": [{"name": "core", "passwordHash": "<<crypt>>"}]},
 "storage": {"files": [{"path": "/etc/motd", "contents": {"source": "data:,shown%20text"}},
    {"path": "/etc/app.env", "contents": {"source": "data:,DB_PASSWORD%3D<<token>>"}}],
  "luks": [{"name": "data", "device": "/dev/vdb", "keyFile": {"source": "data:,<<token>>"}}]}}
"""

USER_FILES = """\
machine one.example account a login ci password <<password>>
machine two.example password <<password>> login ci
db.example:5432:app:ci:<<token>>
*:*:*:postgres:<<password>>
2001:db8:0:1:2:3:4:5
52:54:00:12:34:56
//registry.example/:_authToken=<<token>>
//registry.example/:_password=<<base64>>
index-url = https://ci:<<password>>@pypi.example/simple
[pypi]
password = pypi-<<token>>
bindpw <<password>>
    auth_pass <<token>>
bearer eyJhbGciOiJkaXIifQ..<<token>>.<<token>>.<<token>>
{"kty": "EC", "crv": "P-256", "x": "AAAAshownAAAAshown", "d": "<<token>>"}
{'token': u'<<token>>', 'user': u'bob'}
"""

CORPUS: dict[str, SecretSource] = {
    "cloud-init": SecretSource(
        CLOUD_INIT, ("expire: false", "-U admin", "-b dc=example", "[ldapsearch, -x]", "final_message: done")
    ),
    "Ignition": SecretSource(
        IGNITION,
        ("https://api-int.example:22623/config/master", "data:,shown%20text", '"device": "/dev/vdb"'),
    ),
    "files of users": SecretSource(
        USER_FILES,
        (
            "machine one.example account a login ci",
            "db.example:5432:app:ci:",
            "2001:db8:0:1:2:3:4:5",
            "52:54:00:12:34:56",
            "@pypi.example/simple",
            "AAAAshownAAAAshown",
            "u'bob'",
        ),
    ),
    "kubeadm's kube-apiserver manifest": SecretSource(
        KUBEADM_MANIFEST,
        (
            "proxy.corp.example:3128",
            "[2001:db8::7]:3128",
            "name: DB_PASSWORD",
            "10.0.0.0/8,.svc",
            "--tls-private-key-file=/etc/kubernetes/pki/apiserver.key",
            "--etcd-keyfile=/etc/kubernetes/pki/apiserver-etcd-client.key",
            "--kubelet-client-key=/etc/kubernetes/pki/apiserver-kubelet-client.key",
            "--token-auth-file=/etc/kubernetes/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-bootstrap-token-auth=true",
            "secretName: bootbridge-agent-tls",
            "name: k8s-certs",
        ),
    ),
    "kubectl get -o json": SecretSource(
        POD_JSON,
        (
            "registry-credentials",
            "node-role.kubernetes.io/master",
            "kubernetes.io/hostname",
            '"automountServiceAccountToken": false',
            '"value": "3"',
            "/run/secrets/db",
            '"key": "token"',
            "shown",
        ),
    ),
    "kubectl describe": SecretSource(
        DESCRIBE,
        (
            "webhook-dockercfg",
            "<set to the key 'password' in secret 'db'>  Optional: false",
            "https://login.example/token",
            "SecretName:  bootbridge-agent-tls",
            'secret "bootbridge-agent-tls" not found',
        ),
    ),
    "systemd": SecretSource(
        SYSTEMD,
        ("MODE=bootstrap", "/etc/sysconfig/app", "--key-file /etc/app/tls.key", "--port 80", "@proxy:3128"),
    ),
    "docker inspect": SecretSource(DOCKER_INSPECT, ("PATH=/usr/local/bin:/usr/bin", '"db"', "sha256:1111")),
    "shell, ps, rc files": SecretSource(
        SHELL,
        (
            "OS_USERNAME=admin",
            "SSH_KEY_PATH=/root/.ssh/id_ed25519",
            "10.0.0.5:6443",
            "--secret-name=db",
            "User Id=sa",
        ),
    ),
    "kubeconfig": SecretSource(
        KUBECONFIG,
        (
            "client-key: /var/lib/kubelet/pki/kubelet-client-current.pem",
            "username: root",
            "client-id: kubernetes",
            "https://idp.example",
        ),
    ),
    "cloud credentials": SecretSource(
        CLOUD,
        (
            "region = eu-west-1",
            '"clientId": "app"',
            "auth_url: https://keystone.example:5000",
            "AccountName=logs",
        ),
    ),
    "HTTP traces": SecretSource(
        HTTP,
        (
            "Host: keystone.example",
            "https://api.example:6443/api",
            "@git.example/repo.git",
            "basic authentication failed for TokenReview: tokenreviews.authentication.k8s.io is forbidden",
        ),
    ),
    "install-config": SecretSource(
        INSTALL_CONFIG,
        (
            "baseDomain: example.com",
            "proxy.example:3129",
            "user: administrator@vsphere.local",
            "- name: core",
        ),
    ),
    "logs": SecretSource(
        LOGS,
        (
            'token_reviews=4 key="kube-system/konnectivity-agent-7xk2p"',
            'secret="kube-system/bootbridge-agent-tls" failed to watch secrets',
            '"host":"db"',
            '"next":"shown"',
            "code=401",
            "@db.example:5432/app?sslmode=require failed",
            "@mq.example: timeout",
            "<user>bob</user>",
            "Subject: O=system:nodes, CN=system:node:node0",
            "X509v3 Basic Constraints: critical",
            "X509v3 Key Usage: critical, Digital Signature",
            "Public-Key: (256 bit)",
        ),
    ),
    "encryption settings": SecretSource(
        ENCRYPTION,
        ("name: key1", "resources: [secrets]", "PublicKey = AAAAshown", "after: shown", "port: 22"),
    ),
}
