"""Bootbridge: the bridge from a bootstrap kube-apiserver into the pod network."""

__version__ = "0.1.0"
