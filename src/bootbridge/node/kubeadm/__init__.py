"""kubeadm and the kubelet on this machine, as the flows of a node use them.

`documents` converts a cluster spec or a ticket to kubeadm's v1beta4 documents; `run` runs kubeadm with them
through `commands`, which bounds and redacts its output; `leftovers` finds and removes what kubeadm leaves
behind; `kubelet_service` starts the kubelet; `api_server` waits for the API server. `machine` combines them
in the order that an init, a join or a reset needs. All of it runs in `bootbridge node run`.
"""
