"""The join service: checks an instance's evidence and gives it a ticket, with which it becomes a node.

Runs as its own process (`bootbridge join-service`) in its own image, as a DaemonSet on control planes.
In the order in which a request meets them:

active policy       what the operator allows: evidence, instances, roles (`active_policy`, `policy_watch`)
inventory           the instances, and which of them is calling (`inventory`)
authorization       the request's claims compared with the inventory; the result is a grant (`authorization`)
ticket limit        how many valid tickets one key may have (`ticket_limit`)
control-plane files the cluster's CA, and the keys for further control planes (`control_plane_files`)
name binding        a node name belongs to the first key that used it (`name_bindings`, `write_batcher`)
control-plane lease one control plane joins at a time (`control_plane_lease`)
bootstrap token     valid for the ticket's node name only (`bootstrap_tokens`)
CSR approval        the kubelet's client certificate, for that name only (`csr_approver`)
audit log           one line for each ticket, refusal and CSR decision (`audit`)

`service` performs these steps, `main` runs it, `manifests` and `deploy` install it in a cluster.
"""
