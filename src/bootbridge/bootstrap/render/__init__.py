"""A plan as files: manifests, egress selector, kubeadm and kube-apiserver configuration, shell script."""
