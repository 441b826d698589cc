"""Values of the chart, one row for each use: what the objects must contain then, or the refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TOKEN = {
    "authentication": {"method": "token", "certificate": {"secret": ""}},
    "servers": {"ca": {"configMap": "kube-root-ca.crt"}},
}
GO_AGENT = {"image": {"program": "konnectivity"}}
HOST_NETWORK = {"hostNetwork": True}
DEPLOYMENT = {"kind": "Deployment"}


@dataclass(frozen=True)
class Row:
    """`objects` maps paths, as `DaemonSet tunnel-agent: spec.selector`, to values; None: absent."""

    name: str
    values: Mapping[str, Any]
    objects: Mapping[str, Any] = field(default_factory=dict)
    flags: Sequence[str] = ()  # arguments of the agent
    without: Sequence[str] = ()  # names of flags that it must not have

    def __str__(self) -> str:
        return self.name


_DAEMONSET, _DEPLOYMENT = "DaemonSet tunnel-agent", "Deployment tunnel-agent"
_POD = f"{_DAEMONSET}: spec.template.spec"
_AGENT = f"{_POD}.containers.0"
_DIGEST = "sha256:" + "0a" * 32

ROWS = [
    Row(
        "defaults",
        {},
        {
            _DAEMONSET: True,
            "ServiceAccount tunnel-agent": True,
            "PodDisruptionBudget tunnel-agent: spec.minAvailable": 1,
            "Service tunnel-agent": None,
            "ServiceMonitor tunnel-agent": None,
            "NetworkPolicy tunnel-agent": None,
            "Role tunnel-agent-leases": None,
            "Role tunnel-agent-node-proof": None,
            f"{_POD}.automountServiceAccountToken": False,
            f"{_POD}.terminationGracePeriodSeconds": 30,
            f"{_DAEMONSET}: spec.updateStrategy.rollingUpdate": {"maxSurge": "20%", "maxUnavailable": 0},
            f"{_POD}.tolerations": [{"operator": "Exists"}],
            f"{_POD}.priorityClassName": "system-node-critical",
            f"{_POD}.dnsPolicy": "Default",
            f"{_POD}.topologySpreadConstraints": None,
            f"{_AGENT}.image": "registry.example/bootbridge:VERSION",
            f"{_AGENT}.command": ["/usr/bin/proxy-agent"],
        },
        flags=[
            "--proxy-server-host=192.0.2.5",
            "--proxy-server-port=8132",
            "--agent-id=$(POD_NAME)",
            "--agent-identifiers=host=$(NODE_NAME)&ipv4=$(HOST_IP)&default-route=true",
            "--drain-timeout=25s",
            "--admin-bind-address=127.0.0.1",
        ],
        without=[
            "--service-account-token-path",
            "--count-server-leases",
            "--health-server-host",
            "--allow-destinations",
            "--deny-destinations",
        ],
    ),
    Row(
        "image",
        {
            "image": {
                "repository": "registry.example/b",
                "tag": "1.2",
                "pullPolicy": "Always",
                "pullSecrets": ["registry"],
                "program": "bootbridge",
                "command": "/proxy-agent",
            }
        },
        {
            f"{_AGENT}.image": "registry.example/b:1.2",
            f"{_AGENT}.imagePullPolicy": "Always",
            f"{_AGENT}.command": ["/proxy-agent"],
            f"{_POD}.imagePullSecrets": [{"name": "registry"}],
        },
    ),
    Row(
        "image by digest",
        {"image": {"tag": "ignored", "digest": _DIGEST}},
        {f"{_AGENT}.image": f"registry.example/bootbridge@{_DIGEST}"},
    ),
    Row(
        "Go agent",
        GO_AGENT,
        {f"{_AGENT}.command": ["/proxy-agent"]},
        without=["--drain-timeout", "--log-format"],
    ),
    Row(
        "Go agent that counts leases",
        {**GO_AGENT, "servers": {"count": "leases"}},
        flags=["--lease-label=k8s-app=konnectivity-server"],
        without=["--lease-label-selector"],
    ),
    Row(
        "Deployment",
        {**DEPLOYMENT, "replicas": 3},
        {
            _DAEMONSET: None,
            f"{_DEPLOYMENT}: spec.replicas": 3,
            f"{_DEPLOYMENT}: spec.strategy.rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0},
            f"{_DEPLOYMENT}: spec.template.spec.tolerations": None,
            f"{_DEPLOYMENT}: spec.template.spec.topologySpreadConstraints.0.maxSkew": 1,
        },
        flags=["--agent-identifiers=default-route=true"],
    ),
    Row(
        "several servers, IPv4 and IPv6",
        {"servers": {"hosts": ["192.0.2.5", "fd00::7", "konnectivity.example"], "port": 8091}},
        flags=["--proxy-server-host=192.0.2.5,fd00::7,konnectivity.example", "--proxy-server-port=8091"],
    ),
    Row("servers announce their number", {"servers": {"count": "announced"}}, without=["--lease-namespace"]),
    Row(
        "leases",
        {
            "servers": {"count": "leases", "leases": {"namespace": "leases", "labelSelector": "app=server"}},
            "kubeApiServer": {"host": "192.0.2.9", "port": 443},
        },
        {
            "Role tunnel-agent-leases: metadata.namespace": "leases",
            "Role tunnel-agent-leases: rules": [
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list", "watch"]}
            ],
            "RoleBinding tunnel-agent-leases: subjects": [
                {"kind": "ServiceAccount", "name": "tunnel-agent", "namespace": "agents"}
            ],
            f"{_POD}.automountServiceAccountToken": True,
            f"{_AGENT}.env.4": {"name": "KUBERNETES_SERVICE_HOST", "value": "192.0.2.9"},
            f"{_AGENT}.env.5": {"name": "KUBERNETES_SERVICE_PORT", "value": "443"},
        },
        flags=[
            "--count-server-leases=true",
            "--lease-namespace=leases",
            "--lease-label-selector=app=server",
        ],
    ),
    Row(
        "roles made by the operator",
        {"rbac": {"create": False}, "servers": {"count": "leases"}, "authentication": {"proveNode": True}},
        {"Role tunnel-agent-leases": None, "Role tunnel-agent-node-proof": None},
    ),
    Row(
        "CA in a Secret of its own",
        {"servers": {"ca": {"secret": "ca", "key": "bundle.pem"}}},
        {
            f"{_POD}.volumes.0.secret.secretName": "ca",
            f"{_POD}.volumes.0.secret.items": [{"key": "bundle.pem", "path": "bundle.pem"}],
            f"{_POD}.volumes.1.secret.secretName": "agent-certificate",
        },
        flags=["--ca-cert=/etc/bootbridge/ca/bundle.pem"],
    ),
    Row(
        "certificates",
        {"authentication": {"method": "certificate", "certificate": {"secret": "mine"}}},
        {
            f"{_POD}.volumes.0.secret.secretName": "mine",
            f"{_POD}.volumes.1.secret.secretName": "mine",
            f"{_POD}.volumes.1.secret.items": [
                {"key": "tls.crt", "path": "tls.crt"},
                {"key": "tls.key", "path": "tls.key"},
            ],
        },
        flags=[
            "--agent-cert=/etc/bootbridge/certificate/tls.crt",
            "--agent-key=/etc/bootbridge/certificate/tls.key",
        ],
    ),
    Row(
        "tokens",
        {
            **TOKEN,
            "authentication": {
                "method": "token",
                "certificate": {"secret": ""},
                "token": {"audience": "servers", "expirationSeconds": 7200},
            },
        },
        {
            f"{_POD}.volumes.0.configMap.name": "kube-root-ca.crt",
            f"{_POD}.volumes.1.projected.sources.0.serviceAccountToken": {
                "path": "token",
                "audience": "servers",
                "expirationSeconds": 7200,
            },
            f"{_POD}.automountServiceAccountToken": False,
        },
        flags=["--service-account-token-path=/var/run/secrets/bootbridge/token"],
        without=["--agent-cert", "--agent-key"],
    ),
    Row(
        "token that proves the node beside a certificate",
        {"authentication": {"proveNode": True}},
        {
            f"{_POD}.volumes.2.projected.sources.0.serviceAccountToken": {
                "path": "token",
                "expirationSeconds": 3600,
            },
            "Role tunnel-agent-node-proof: metadata.namespace": "agents",
            "Role tunnel-agent-node-proof: rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
            ],
        },
        flags=["--service-account-token-path=/var/run/secrets/bootbridge/token"],
    ),
    Row(
        "advertised destinations",
        {
            "advertise": {
                "defaultRoute": False,
                "podPrefixLength": 64,
                "ipFamily": "ipv6",
                "extra": "cidr=2001:db8::/64",
            }
        },
        flags=["--agent-identifiers=host=$(NODE_NAME)&ipv6=$(HOST_IP)&cidr=$(POD_IP)/64&cidr=2001:db8::/64"],
    ),
    Row(
        "destinations",
        {"destinations": {"allow": ["10.0.0.0/8", "[fd00::/8]:443"], "deny": ["10.0.0.7/32"]}},
        flags=["--allow-destinations=10.0.0.0/8,[fd00::/8]:443", "--deny-destinations=10.0.0.7/32"],
    ),
    Row(
        "drain",
        {"drainSeconds": 600},
        {f"{_POD}.terminationGracePeriodSeconds": 605},
        flags=["--drain-timeout=600s"],
    ),
    Row(
        "rollout",
        {"rollout": {"maxSurge": 0, "maxUnavailable": "5%"}},
        {f"{_DAEMONSET}: spec.updateStrategy.rollingUpdate": {"maxSurge": 0, "maxUnavailable": "5%"}},
    ),
    Row(
        "no disruption budget",
        {"podDisruptionBudget": {"enabled": False}},
        {"PodDisruptionBudget tunnel-agent": None},
    ),
    Row(
        "disruption budget of a Deployment",
        {**DEPLOYMENT, "podDisruptionBudget": {"minAvailable": "", "maxUnavailable": "50%"}},
        {
            "PodDisruptionBudget tunnel-agent: spec.maxUnavailable": "50%",
            "PodDisruptionBudget tunnel-agent: spec.minAvailable": None,
        },
    ),
    Row(
        "host network",
        HOST_NETWORK,
        {
            f"{_POD}.hostNetwork": True,
            f"{_AGENT}.livenessProbe.httpGet.host": "127.0.0.1",
            f"{_AGENT}.readinessProbe.httpGet.host": "127.0.0.1",
            f"{_DAEMONSET}: spec.updateStrategy.rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"},
        },
        flags=["--health-server-host=127.0.0.1"],
    ),
    Row(
        "metrics in the host network",
        {
            **HOST_NETWORK,
            "health": {"port": 9093, "bindAddress": "::"},
            "admin": {"port": 9094},
            "metrics": {"service": {"enabled": True}},
        },
        {
            f"{_AGENT}.livenessProbe.httpGet.host": None,
            f"{_AGENT}.ports.0.containerPort": 9093,
            "Service tunnel-agent: spec.ports.0.port": 9093,
        },
        flags=["--health-server-host=::", "--health-server-port=9093", "--admin-server-port=9094"],
    ),
    Row(
        "ServiceMonitor",
        {
            "metrics": {
                "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "1m"}
            }
        },
        {
            "Service tunnel-agent: spec.clusterIP": "None",
            "ServiceMonitor tunnel-agent: metadata.labels.release": "prometheus",
            "ServiceMonitor tunnel-agent: spec.endpoints.0.interval": "1m",
            "ServiceMonitor tunnel-agent: spec.endpoints.0.port": "metrics",
        },
    ),
    Row(
        "network policy",
        {"networkPolicy": {"enabled": True}},
        {
            "NetworkPolicy tunnel-agent: spec.policyTypes": ["Ingress"],
            "NetworkPolicy tunnel-agent: spec.ingress": [],
        },
    ),
    Row(
        "network policy with peers",
        {
            "networkPolicy": {
                "enabled": True,
                "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
                "egress": [{"to": [{"ipBlock": {"cidr": "fd00::/8"}}]}],
            }
        },
        {
            "NetworkPolicy tunnel-agent: spec.policyTypes": ["Ingress", "Egress"],
            "NetworkPolicy tunnel-agent: spec.ingress.0.ports": [{"port": 8093, "protocol": "TCP"}],
            "NetworkPolicy tunnel-agent: spec.ingress.0.from.0": {
                "namespaceSelector": {"matchLabels": {"name": "monitoring"}}
            },
            "NetworkPolicy tunnel-agent: spec.egress.0.to.0.ipBlock.cidr": "fd00::/8",
        },
    ),
    Row(
        "service account",
        {"serviceAccount": {"name": "mine", "annotations": {"a": "b"}}},
        {"ServiceAccount mine: metadata.annotations": {"a": "b"}, f"{_POD}.serviceAccountName": "mine"},
    ),
    Row(
        "existing service account",
        {"serviceAccount": {"create": False, "name": "mine"}},
        {"ServiceAccount mine": None, f"{_POD}.serviceAccountName": "mine"},
    ),
    Row(
        "OpenShift",
        {"openshift": True},
        {
            f"{_DAEMONSET}: spec.template.metadata.annotations": {
                "openshift.io/required-scc": "restricted-v2"
            },
            f"{_POD}.securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    ),
    Row(
        "placement",
        {
            "dnsPolicy": "ClusterFirst",
            "priorityClassName": "",
            "tolerations": [],
            "nodeSelector": {"role": "agents"},
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [],
            "resources": {"limits": {"memory": "256Mi"}},
        },
        {
            f"{_POD}.dnsPolicy": "ClusterFirst",
            f"{_POD}.priorityClassName": None,
            f"{_POD}.tolerations": [],
            f"{_POD}.nodeSelector": {"kubernetes.io/os": "linux", "role": "agents"},
            f"{_POD}.affinity": {"nodeAffinity": {}},
            f"{_POD}.topologySpreadConstraints": [],
            f"{_AGENT}.resources.limits": {"memory": "256Mi"},
        },
    ),
    Row(
        "log",
        {"logFormat": "json", "logVerbosity": 2},
        flags=["--log-format=json", "--v=2"],
    ),
    Row(
        "names, labels and annotations",
        {
            "nameOverride": "konnectivity-agent",
            "labels": {"team": "platform"},
            "podLabels": {"tier": "infra"},
            "podAnnotations": {"checked": "yes"},
        },
        {
            "DaemonSet konnectivity-agent: metadata.labels.team": "platform",
            "DaemonSet konnectivity-agent: spec.template.metadata.labels.tier": "infra",
            "DaemonSet konnectivity-agent: spec.template.metadata.annotations": {"checked": "yes"},
            "ServiceAccount konnectivity-agent": True,
        },
    ),
    Row(
        "additions",
        {
            "extraArgs": ["--stall-timeout=20s", "--alpn-proto=a: b"],
            "extraEnv": [{"name": "A", "value": "b"}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        },
        {
            f"{_AGENT}.env.4": {"name": "A", "value": "b"},
            f"{_POD}.volumes.2": {"name": "more", "emptyDir": {}},
            f"{_AGENT}.volumeMounts.2": {"name": "more", "mountPath": "/more"},
        },
        flags=["--stall-timeout=20s", "--alpn-proto=a: b"],
    ),
]


@dataclass(frozen=True)
class Refusal:
    values: Mapping[str, Any]
    sentence: str

    def __str__(self) -> str:
        return self.sentence.partition(":")[0]


_NO_NODE = "(an agent of a Deployment serves no certain node)"
_GO = "the Go agent does not have this (use image.program=bootbridge, or"
# Values that do not fit together, or texts in a wrong form: refused by the templates.
REFUSALS = [
    Refusal(
        {"image": {"repository": ""}},
        "image.repository: required value missing (make an image with `bootbridge image build`, and push it "
        "to your registry)",
    ),
    Refusal(
        {"image": {"repository": "a@sha256"}},
        'image.repository: invalid value "a@sha256" (without tag and digest, which have values of their own)',
    ),
    Refusal(
        {"image": {"tag": "a b"}}, """image.tag: invalid value "a b" (letters, digits, '_', '.' and '-')"""
    ),
    Refusal(
        {"image": {"digest": "sha256:1"}},
        'image.digest: invalid value "sha256:1" (sha256: and 64 hexadecimal digits)',
    ),
    Refusal({"image": {"command": "agent"}}, 'image.command: invalid value "agent" (an absolute path)'),
    Refusal(
        {"servers": {"hosts": []}},
        "servers.hosts: at least one host is required (the load balancer of the proxy-servers, or the "
        "address of each control plane)",
    ),
    *(
        Refusal({"servers": {"hosts": [host]}}, f'servers.hosts: "{host}" contains a port (set servers.port)')
        for host in ("192.0.2.5:8132", "[fd00::7]:8132")
    ),
    *(
        Refusal(
            {"servers": {"hosts": [host]}},
            f'servers.hosts: invalid host "{host}" (one host name or address in each entry)',
        )
        for host in ("192.0.2.5,192.0.2.6", "a b", "a/b")
    ),
    Refusal(
        {"authentication": {"certificate": {"secret": ""}}},
        "authentication.certificate.secret: required with authentication.method=certificate (name a Secret "
        "with ca.crt, tls.crt and tls.key, or use authentication.method=token)",
    ),
    Refusal(
        {"authentication": {"method": "token"}},
        "authentication.certificate.secret: not used with authentication.method=token (remove it, or use "
        "authentication.method=certificate)",
    ),
    Refusal(
        {"authentication": {"certificate": {"secret": "Agent"}}},
        'authentication.certificate.secret: invalid value "Agent" '
        "(lower case letters, digits, '-' and '.')",
    ),
    Refusal(
        {"servers": {"ca": {"secret": "a", "configMap": "b"}}},
        "servers.ca: secret and configMap are both set (keep one)",
    ),
    Refusal(
        {**TOKEN, "servers": {}},
        "servers.ca: required with authentication.method=token (set servers.ca.secret or "
        "servers.ca.configMap; servers.ca.configMap=kube-root-ca.crt if the cluster's CA has signed "
        "the servers' certificate)",
    ),
    Refusal(
        {**TOKEN, "authentication": {**TOKEN["authentication"], "token": {"audience": "a b"}}},
        'authentication.token.audience: invalid value "a b" (the servers\' --authentication-audience)',
    ),
    Refusal(
        {**TOKEN, "authentication": {**TOKEN["authentication"], "proveNode": True}},
        "authentication.proveNode: the token must be valid for the kube-apiserver (set "
        "authentication.token.audience, and --authentication-audience of the servers, to the "
        "kube-apiserver's --service-account-issuer)",
    ),
    Refusal(
        {"serviceAccount": {"create": False}},
        "serviceAccount.name: required with serviceAccount.create=false",
    ),
    Refusal(
        {"kubeApiServer": {"host": "192.0.2.9"}},
        "kubeApiServer.host: used only to count leases (set servers.count=leases, or remove it)",
    ),
    Refusal(
        {"servers": {"count": "leases"}, "kubeApiServer": {"host": "https://a"}},
        'kubeApiServer.host: invalid value "https://a" (a host name or address, without https://)',
    ),
    Refusal(
        {**GO_AGENT, "servers": {"hosts": ["a", "b"]}},
        f"servers.hosts: more than one host: {_GO} name a load balancer)",
    ),
    Refusal(
        {**GO_AGENT, "destinations": {"deny": ["10.0.0.0/8"]}},
        f"destinations: {_GO} remove them, and use a NetworkPolicy)",
    ),
    Refusal(
        {**GO_AGENT, "authentication": {"proveNode": True}}, f"authentication.proveNode: {_GO} remove it)"
    ),
    Refusal({**GO_AGENT, "logFormat": "json"}, f"logFormat: {_GO} logFormat=text)"),
    Refusal(
        {**DEPLOYMENT, "advertise": {"podPrefixLength": 24}},
        f"advertise.podPrefixLength: only with kind=DaemonSet {_NO_NODE}",
    ),
    Refusal(
        {**DEPLOYMENT, "authentication": {"proveNode": True}},
        f"authentication.proveNode: only with kind=DaemonSet {_NO_NODE}",
    ),
    Refusal(
        {**DEPLOYMENT, "advertise": {"defaultRoute": False}},
        "advertise.defaultRoute: agents of a Deployment that advertise nothing get no dials (set it to true, "
        "or set advertise.extra)",
    ),
    Refusal(
        {**HOST_NETWORK, "advertise": {"podPrefixLength": 24}},
        "advertise.podPrefixLength: not with hostNetwork=true (the agent has no address of the pod network)",
    ),
    Refusal(
        {"advertise": {"podPrefixLength": 64}},
        "advertise.podPrefixLength: at most 32 with advertise.ipFamily=ipv4",
    ),
    Refusal(
        {"advertise": {"extra": "legacy"}},
        'advertise.extra: invalid value "legacy" (for example host=legacy&cidr=192.0.2.0/24)',
    ),
    Refusal(
        {"destinations": {"allow": ["10.0.0.0/8 443"]}},
        'destinations: invalid rule "10.0.0.0/8 443" (a CIDR with optional ports, as 10.0.0.0/8:443 or '
        "[fd00::/8]:1-1024)",
    ),
    Refusal({"admin": {"port": 8093}}, "admin.port: port 8093 is health.port too (choose another)"),
    Refusal(
        {"health": {"bindAddress": "[::]"}},
        'health.bindAddress: invalid value "[::]" (an IP address without brackets)',
    ),
    Refusal(
        {**HOST_NETWORK, "networkPolicy": {"enabled": True}},
        "networkPolicy.enabled: no effect with hostNetwork=true (use the nodes' firewall)",
    ),
    Refusal(
        {**HOST_NETWORK, "openshift": True},
        "hostNetwork: not with openshift=true (the SCC restricted-v2 allows no host network)",
    ),
    Refusal(
        {**HOST_NETWORK, "metrics": {"serviceMonitor": {"enabled": True}}},
        "metrics: the health port is on loopback with hostNetwork=true (set health.bindAddress to an address "
        "that Prometheus reaches, for example 0.0.0.0)",
    ),
    Refusal(
        {"metrics": {"serviceMonitor": {"enabled": True}}, "networkPolicy": {"enabled": True}},
        "networkPolicy.metricsFrom: required with networkPolicy.enabled and metrics.serviceMonitor.enabled "
        "(name the pods of Prometheus: the policy allows no other connections)",
    ),
    Refusal(
        {"metrics": {"serviceMonitor": {"interval": "15"}}},
        'metrics.serviceMonitor.interval: invalid value "15" (for example 15s)',
    ),
    Refusal(
        {"rollout": {"maxSurge": 0}},
        "rollout: maxSurge and maxUnavailable are both 0, so that no update is possible (raise one of them)",
    ),
    Refusal(
        {"rollout": {"maxSurge": "all"}},
        'rollout.maxSurge: invalid value "all" (a number, or a percentage such as 10%)',
    ),
    Refusal(
        {**HOST_NETWORK, "rollout": {"maxSurge": 1}},
        "rollout.maxSurge: not with hostNetwork=true (two agents on one node would use the same ports)",
    ),
    *(
        Refusal(
            {"podDisruptionBudget": budget},
            "podDisruptionBudget: exactly one of minAvailable and maxUnavailable is required (set the other "
            'to "")',
        )
        for budget in ({"minAvailable": ""}, {"maxUnavailable": 1})
    ),
    *(
        Refusal(
            {"podDisruptionBudget": budget},
            "podDisruptionBudget: only a number in minAvailable with kind=DaemonSet (Kubernetes computes "
            "nothing else for a DaemonSet)",
        )
        for budget in ({"minAvailable": "50%"}, {"minAvailable": "", "maxUnavailable": 1})
    ),
    Refusal(
        {**DEPLOYMENT, "replicas": 1},
        "podDisruptionBudget.minAvailable: 1 of 1 replicas must remain, so that no node can be drained "
        "(raise replicas, or disable the budget)",
    ),
    Refusal(
        {"nameOverride": "Agent"},
        "nameOverride: invalid value \"Agent\" (at most 63 lower case letters, digits and '-')",
    ),
    Refusal({"extraArgs": ["-v"]}, 'extraArgs: invalid value "-v" (write --flag=value, with two dashes)'),
    Refusal(
        {"extraArgs": ["--agent-id=me"]},
        "extraArgs: --agent-id is set by the chart (use the chart's value for it)",
    ),
]

# Values of a wrong name, type or range: refused by values.schema.json, with the path of the value.
SCHEMA_REFUSALS = [
    Refusal({"image": {"tagg": "1"}}, "at '/image': additional properties 'tagg' not allowed"),
    Refusal({"server": {}}, "at '': additional properties 'server' not allowed"),
    Refusal({"kind": "StatefulSet"}, "at '/kind': value must be one of 'DaemonSet', 'Deployment'"),
    Refusal({"servers": {"port": 0}}, "at '/servers/port': minimum: got 0, want 1"),
    Refusal({"servers": {"hosts": "a"}}, "at '/servers/hosts': got string, want array"),
    Refusal({"servers": {"count": 2}}, "at '/servers/count': value must be one of 'announced', 'leases'"),
    Refusal({"hostNetwork": "yes"}, "at '/hostNetwork': got string, want boolean"),
    Refusal(
        {"authentication": {"token": {"expirationSeconds": 60}}},
        "at '/authentication/token/expirationSeconds': minimum: got 60, want 600",
    ),
]
