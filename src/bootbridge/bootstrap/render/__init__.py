"""Renders a plan as files.

`program_flags` (command lines of server and agent), `manifests` (pod, namespace, Secret, DaemonSet),
`egress_selector` (configuration of the kube-apiserver), `kasconfig` (merge of OpenShift's overrides),
`kubeadm` and `apiserver_manifest` (the same for kubeadm), `shell` (script for nodes without Python),
`node_files` (all files of a node), `output_directory` (what `bootbridge render` writes). Runs in the
`bootbridge` command.
"""
