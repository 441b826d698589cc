"""A small Kubernetes client for two long-running processes.

In the order a call meets them:

access      where the API server is and how we prove who we are (``config``)
request     what is asked, as a plain value (``requests``)
client      sends a request over a kept-alive TLS connection (``client``)
list-watch  the law of following a resource without missing a change (``watch``, run by ``follow``)
review      is this agent's token good? (``token_review``)
lease       a server's sign of life: published, collected, counted (``leases`` and its three runners)

Bodies are JSON in both directions whatever ``--kube-api-content-type`` says: every API
server speaks it, and our objects are too small for protobuf to pay.
"""
