"""Walks the way from the kube-apiserver to a pod, hop by hop, and names the first that is broken.

step          one step of the walk and its verdict (``step``)
steps         all of them, in order (``steps``)
way           what is walked: the site, the destination, and what is known of both (``way``)
kube-apiserver, server and socket, agents, destination: the steps of each hop
              (``apiserver``, ``server``, ``agents``, ``destination``)
tunnel        a connection through the server's socket, as the kube-apiserver makes it (``tunnel``)
from_node     the agents' port, tried from a node's side (``from_node``)
"""

from __future__ import annotations

from bootbridge.bootstrap.diagnose.doctor.context import DiagnosisContext
from bootbridge.bootstrap.diagnose.doctor.from_node import probe_from_node
from bootbridge.bootstrap.diagnose.doctor.step import Diagnosis, DiagnosisStep, Hop, StepVerdict
from bootbridge.bootstrap.diagnose.doctor.steps import diagnose

__all__ = [
    "Diagnosis",
    "DiagnosisContext",
    "DiagnosisStep",
    "Hop",
    "StepVerdict",
    "diagnose",
    "probe_from_node",
]
