"""The resources in the cluster: the agents' namespace, Secret, Role and DaemonSet."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from bootbridge.bootstrap.install.context import InstallContext
from bootbridge.bootstrap.install.resources.resource import ApplyResult, Resource, ResourceChange
from bootbridge.bootstrap.machine.node_values import PLACEHOLDERS, NodeValues
from bootbridge.bootstrap.plan.plan import BOOTSTRAP_ONLY
from bootbridge.bootstrap.render import manifests
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ClusterClient
from bootbridge.kube.kinds import DAEMON_SET, NAMESPACE, POD, ROLE, ROLE_BINDING, SECRET, Kind
from bootbridge.kube.objects import Ref, ref_of
from bootbridge.kube.requests import Json

# The condition of a namespace whose deletion waits for an API that does not answer.
UNDISCOVERED = "NamespaceDeletionDiscoveryFailure"


class ClusterResource(Resource):
    """One object, by server-side apply; the removal deletes all objects of its kind with our label."""

    in_cluster = True
    kind: Kind

    def __init__(self, context: InstallContext) -> None:
        self.context = context
        self.plan = context.plan

    @property
    def cluster(self) -> ClusterClient:
        if self.context.cluster is None:
            hint = f"give --kubeconfig=FILE, or fix {self.plan.paths.kubeconfig}"
            raise OperatorError("no access to the cluster", subject="--kubeconfig", hint=hint)
        return self.context.cluster

    @abstractmethod
    def manifest(self, values: NodeValues) -> Json:
        """Returns the object that the plan requires."""

    def ref(self) -> Ref:
        return ref_of(self.manifest(PLACEHOLDERS))

    def present(self) -> list[dict[str, Any]]:
        return self.cluster.list(self.kind, self.plan.namespace, self.plan.selector)

    def find(self) -> list[str]:
        return [str(self._ref_of(found)) for found in self.present()]

    def preview(self) -> ApplyResult:
        before = self.cluster.get(self.ref())
        values = self.context.values()
        if before is None or values is None:
            return ApplyResult(ResourceChange.CREATED)
        return _compared(before, self.cluster.apply(self.manifest(values), dry_run=True))

    def apply(self) -> ApplyResult:
        values = self.context.values()
        if values is None:
            raise OperatorError("certificates missing", subject=self.plan.paths.tls)
        before = self.cluster.get(self.ref())
        self.context.record_cluster()
        after = self.cluster.apply(self.manifest(values))
        return ApplyResult(ResourceChange.CREATED) if before is None else _compared(before, after)

    def remove(self) -> None:
        for found in self.present():
            self.cluster.delete(self._ref_of(found), found["metadata"].get("uid", ""))

    def removal_blocker(self, name: str) -> str:
        found = next((each for each in self.present() if str(self._ref_of(each)) == name), {})
        finalizers = found.get("metadata", {}).get("finalizers")
        return (
            f"blocked by finalizers: {', '.join(finalizers)}" if finalizers else super().removal_blocker(name)
        )

    def _ref_of(self, found: Json) -> Ref:
        metadata = found["metadata"]
        return Ref(self.kind, metadata["name"], metadata.get("namespace", ""))


class Namespace(ClusterResource):
    name, title, kind = "namespace", "namespace", NAMESPACE

    def manifest(self, values: NodeValues) -> Json:
        return manifests.namespace(self.plan)

    def present(self) -> list[dict[str, Any]]:
        """Ours by name and label: a namespace of this name that others created is not removed."""
        found = self.cluster.get(self.ref())
        return [dict(found)] if found and _is_ours(found) else []

    def preview(self) -> ApplyResult:
        self._refuse_foreign()
        return super().preview()

    def apply(self) -> ApplyResult:
        self._refuse_foreign()
        return super().apply()

    def apply_blocker(self) -> str:
        """A namespace that an earlier `down` is still deleting accepts no new objects."""
        found = self.cluster.get(self.ref())
        going = found is not None and _phase(found) == "Terminating"
        return f"the old namespace is still being deleted: {conditions(found)}" if found and going else ""

    def force_remove(self) -> str:
        """Removes the finalizer if the deletion waits only for an API that does not answer.

        That API may have been reachable only through the agents, which are removed by now. Nothing is
        forced while objects of ours are left in the namespace.
        """
        for found in self.present():
            if _true_conditions(found) == {UNDISCOVERED} and not self._content():
                self.cluster.finalise(self.ref(), found)
                return f"deletion forced: {conditions(found)}"
        return ""

    def _content(self) -> list[dict[str, Any]]:
        kinds = (POD, SECRET, DAEMON_SET)
        return [each for kind in kinds for each in self.cluster.list(kind, self.plan.namespace)]

    def removal_blocker(self, name: str) -> str:
        found = self.cluster.get(self.ref())
        return conditions(found) if found else super().removal_blocker(name)

    def _refuse_foreign(self) -> None:
        found = self.cluster.get(self.ref())
        if found and not _is_ours(found):
            hint = f"remove it, or label it {BOOTSTRAP_ONLY}=true to have `bootbridge down` remove it"
            raise OperatorError("exists already and is not ours", subject=str(self.ref()), hint=hint)


class AgentSecret(ClusterResource):
    name, title, kind = "secret", "agent Secret", SECRET

    def manifest(self, values: NodeValues) -> Json:
        return manifests.agent_secret(self.plan, values)


class AgentRole(ClusterResource):
    name, title, kind = "role", "agent Role", ROLE

    def manifest(self, values: NodeValues) -> Json:
        return manifests.agent_role(self.plan)


class AgentRoleBinding(ClusterResource):
    name, title, kind = "role-binding", "agent RoleBinding", ROLE_BINDING

    def manifest(self, values: NodeValues) -> Json:
        return manifests.agent_role_binding(self.plan)


class AgentDaemonSet(ClusterResource):
    """The agents; ready when all scheduled pods are ready and at least one is connected to the server."""

    name, title, kind = "daemonset", "agent DaemonSet", DAEMON_SET

    def manifest(self, values: NodeValues) -> Json:
        return manifests.agent_daemonset(self.plan, values)

    def find(self) -> list[str]:
        return super().find() + [str(pod) for pod in self._pods()]

    def remove(self) -> None:
        """Deletes the pods too: the garbage collector may not be running."""
        super().remove()
        for pod in self._pods():
            self.cluster.delete(pod)

    def unready_reason(self) -> str:
        if reason := self._no_agent_reason():
            return reason
        found = self.cluster.get(self.ref())
        if found is None:
            return "the DaemonSet does not exist"
        counts = found.get("status") or {}
        wanted = counts.get("desiredNumberScheduled", 0)
        # Pods of the previous generation count as ready until they are replaced.
        ready = min(counts.get("numberReady", 0), counts.get("updatedNumberScheduled", 0))
        if counts.get("observedGeneration", 0) < found["metadata"].get("generation", 0):
            return "the controller has not observed it yet"
        if not wanted or ready < wanted:
            return f"{ready} of {wanted} agents are ready"
        # Again: the first answer may have been about agents that a rollout has replaced since.
        return self._no_agent_reason()

    def _no_agent_reason(self) -> str:
        status, text = self.context.host.http_get(self.plan.ports.server_health, "/readyz")
        if status == 200:
            return ""
        return f"no agent is connected to the server: {text.decode('utf-8', 'replace').strip()[:200]}"

    def removal_blocker(self, name: str) -> str:
        return "its kubelet has not stopped it" if name.startswith("Pod ") else super().removal_blocker(name)

    def _pods(self) -> list[Ref]:
        found = self.cluster.list(POD, self.plan.namespace, self.plan.selector)
        return [Ref(POD, pod["metadata"]["name"], self.plan.namespace) for pod in found]


def conditions(namespace: Json) -> str:
    """Returns the conditions of a namespace whose deletion does not complete."""
    found = [
        f"{condition.get('type')}: {condition.get('message')}"
        for condition in (namespace.get("status") or {}).get("conditions") or ()
        if condition.get("status") == "True"
    ]
    none = "no condition gives a reason: is the kube-controller-manager running?"
    return "; ".join(found) or f"phase {_phase(namespace) or 'unknown'}, {none}"


def _true_conditions(namespace: Json) -> set[str]:
    found = (namespace.get("status") or {}).get("conditions") or []
    return {each["type"] for each in found if each.get("status") == "True"}


def _phase(namespace: Json) -> str:
    return str((namespace.get("status") or {}).get("phase") or "")


def _is_ours(found: Json) -> bool:
    return (found["metadata"].get("labels") or {}).get(BOOTSTRAP_ONLY) == "true"


def _compared(before: Json, after: Json) -> ApplyResult:
    return ApplyResult(
        ResourceChange.UNCHANGED if _content(before) == _content(after) else ResourceChange.CHANGED
    )


def _content(found: Json) -> dict[str, Any]:
    """Returns what the plan decides; versions, timestamps and status are the cluster's."""
    kept = {key: value for key, value in found.items() if key not in ("metadata", "status")}
    metadata = found["metadata"]
    return {**kept, "labels": metadata.get("labels"), "annotations": metadata.get("annotations")}
