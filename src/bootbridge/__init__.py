"""Bootbridge: a tunnel from a bootstrap kube-apiserver into the pod network, and the nodes of its cluster."""

__version__ = "0.2.0"
