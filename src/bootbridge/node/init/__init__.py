"""The first node.

The init server on the instance, the client of the operator, and what follows kubeadm init.
"""
