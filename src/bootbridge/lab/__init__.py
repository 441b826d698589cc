"""`bootbridge lab`: a Kubernetes bootstrap on one machine, with real programs in namespaces.

In the order in which `lab up` meets them: `components` (the programs), `layout` (nodes and addresses),
`images`, `cgroups` and `namespaces` (one set per node, held by `init`), `network`, `credentials`,
`node_runtime` and `control_plane` (the configuration of kubelet, containerd and static pods), and
`bring_up`, which runs the steps. `lab` holds it all together by one directory. With `--bootstrapper`,
`instances`, `bootstrapper_files`, `tpm` and `kubelet_supervisor` replace the bootstrap node.

All of it runs in the process of the command, but for `init` and `kubelet_supervisor` (on each node) and
`extension_server` and `archiver` (in pods).
"""
