"""The cluster's side of a join: it looks at an instance's evidence and gives it what makes it a node.

In the order a caller meets them:

policy      what the operator allows: evidence, instances, roles (`policy`, `policy_watch`)
inventory   which instance is this? (`inventory`)
claims      is what it says of itself what the inventory says? (`claims`)
binding     has its name, or its token, been taken by another key? (`name_binding`)
lease       one new control plane at a time (`control_plane_lease`)
ticket      token, certificate and files (`tokens`, `kubelet_certificate`, `control_plane_files`)
approval    its kubelet's first certificate, for no other name than the ticket's (`approver`)
audit       one line for each ticket, approval and refusal (`audit`)

`service` does these in this order, `main` runs it, `manifests` and `deploy` put it into a cluster.
"""
