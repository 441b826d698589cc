"""Tests the hops from the kube-apiserver to a pod in order, and names the first that is broken.

context       what a diagnosis works on: the installation, the destination, the processes found
step, steps   one test of a hop with its verdict; all tests in order
apiserver, server, agents, destination
              the tests of each hop
targets       the destination: an address, or the pod behind a webhook, an APIService or a conversion
from_node     the agents' port, tested from a node
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
