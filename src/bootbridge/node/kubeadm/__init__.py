"""kubeadm, as the node's flows use it: documents from typed values, runs as stages, leftovers removed.

documents  a cluster's specification or a ticket → v1beta4 (``documents``, ``addresses``)
running    its lines bounded, clean of secrets, as stages (``commands``, ``stages``, ``run``)
traces     what kubeadm leaves on a machine, and a reset that leaves nothing (``reset``)
machine    all of it in the order that an init, a join or a retry needs (``machine``)
"""
