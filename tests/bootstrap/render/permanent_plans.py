"""Plans of permanent servers, one for each way in which agents authenticate and count servers."""

from __future__ import annotations

from ipaddress import ip_network

from bootbridge.bootstrap.plan.permanent import AgentAuthentication, PermanentPlan
from bootbridge.bootstrap.plan.plan import ClusterNetwork, Protocol, ProxyImage

OURS = ProxyImage("bootbridge", "registry.example:5000/bootbridge:1")
BY_DIGEST = ProxyImage("bootbridge", "registry.example/bootbridge@sha256:" + "0a" * 32)
ISSUER = "https://kubernetes.default.svc"
IPV6_PODS = (ClusterNetwork(ip_network("fd01::/48"), 64), ClusterNetwork(ip_network("10.128.0.0/14"), 23))

PLANS = {
    "certificates and leases": PermanentPlan(image=OURS, server_hosts=("192.0.2.5", "192.0.2.6")),
    "certificates and a number": PermanentPlan(
        image=BY_DIGEST,
        server_hosts=("konnectivity.example",),
        server_count=3,
        prove_nodes=False,
        protocol=Protocol.HTTP_CONNECT,
        host_network=True,
    ),
    "tokens and leases": PermanentPlan(
        image=OURS,
        server_hosts=("fd00::5",),
        authentication=AgentAuthentication.TOKEN,
        prove_nodes=False,
        cluster_networks=IPV6_PODS,
        destinations=("fd00::/8", "10.0.0.0/8:443"),
    ),
    "tokens that prove the node": PermanentPlan(
        image=OURS,
        server_hosts=("192.0.2.5",),
        server_count=1,
        authentication=AgentAuthentication.TOKEN,
        token_audience=ISSUER,
        agent_namespace="tunnel",
        agent_service_account="agents",
    ),
}
