"""The objects that the chart renders, and the values that it refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import yaml

from bootbridge import __version__
from bootbridge.bootstrap.plan.permanent import PermanentPlan
from bootbridge.bootstrap.plan.plan import Flavour, Plan, ProxyImage
from bootbridge.bootstrap.render import manifests, permanent
from tests.bootstrap.render.manifest_variants import VALUES
from tests.bootstrap.render.permanent_plans import PLANS
from tests.helm.chart_values import REFUSALS, ROWS, SCHEMA_REFUSALS, Refusal, Row
from tests.support import helm
from tests.tools import chart_reference

pytestmark = pytest.mark.helm


@cache
def rendered(index: int) -> dict[str, helm.Json]:
    return helm.objects(ROWS[index].values)


def at(document: Any, path: str) -> Any:
    """Returns the value at a path such as `spec.ports.0.port`; None if there is none."""
    for key in path.split(".") if path else ():
        if isinstance(document, list):
            document = document[int(key)] if int(key) < len(document) else None
        else:
            document = document.get(key) if isinstance(document, Mapping) else None
    return document


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[row.name for row in ROWS])
def test_values_become_objects(index: int) -> None:
    """Each row of the table: the values, and what the objects contain then."""
    row, found = ROWS[index], rendered(index)
    for where, expected in row.objects.items():
        name, _, path = where.partition(": ")
        if expected is True and not path:
            assert name in found
        else:
            wanted = expected.replace("VERSION", __version__) if isinstance(expected, str) else expected
            assert at(found.get(name), path) == wanted, where
    arguments = helm.workload(found)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [flag for flag in row.flags if flag not in arguments] == []
    assert [flag for flag in row.without if any(each.startswith(f"{flag}=") for each in arguments)] == []


def test_every_value_is_in_the_table() -> None:
    """A value that no row sets is not tested."""

    def is_set(path: str) -> bool:
        return any(_has(helm.merged(helm.REQUIRED, row.values), path) for row in ROWS)

    assert [path for path in chart_reference.schema_paths() if not is_set(path)] == []


def _has(values: Any, path: str) -> bool:
    for key in path.split("."):
        if not isinstance(values, Mapping) or key not in values:
            return False
        values = values[key]
    return True


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_values_that_do_not_fit_together_are_refused_with_a_sentence(refusal: Refusal) -> None:
    done = helm.template(refusal.values)
    assert done.returncode != 0, "accepted"
    assert done.stderr.splitlines()[0].partition("): ")[2] == refusal.sentence


@pytest.mark.parametrize("refusal", SCHEMA_REFUSALS, ids=str)
def test_unknown_names_wrong_types_and_ranges_are_refused_by_the_schema(refusal: Refusal) -> None:
    """The message names the value."""
    done = helm.template(refusal.values)
    assert done.returncode != 0, "accepted"
    assert f"- {refusal.sentence}" in done.stderr.splitlines()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_lint_has_no_complaint(row: Row) -> None:
    values = helm.merged(helm.REQUIRED, row.values)
    done = helm.helm("lint", "--strict", str(helm.CHART), values=values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("flavour", Flavour)
def test_agents_are_hardened_as_those_of_the_bootstrap(flavour: Flavour) -> None:
    """The same user, capabilities, probes, resources and priority as the manifests of `up` and `inject`."""
    plan = Plan(flavour=flavour, image=ProxyImage("bootbridge", "registry.example/b:1"))
    theirs = manifests.agent_daemonset(plan, VALUES)["spec"]["template"]["spec"]
    found = helm.objects(
        {"openshift": flavour is Flavour.OPENSHIFT, "health": {"port": plan.ports.agent_health}}
    )
    ours = helm.workload(found)["spec"]["template"]["spec"]
    for field in (
        "securityContext",
        "priorityClassName",
        "tolerations",
        "nodeSelector",
        "dnsPolicy",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "terminationGracePeriodSeconds",
    ):
        assert ours[field] == theirs[field], field
    container, original = ours["containers"][0], theirs["containers"][0]
    for field in ("securityContext", "resources", "terminationMessagePolicy", "imagePullPolicy"):
        assert container[field] == original[field], field
    for probe in ("livenessProbe", "readinessProbe"):
        named = {**original[probe], "httpGet": {**original[probe]["httpGet"], "port": "health"}}
        assert container[probe] == named
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_values_of_permanent_servers_fit_the_chart(plan: PermanentPlan) -> None:
    """Agents of `render --permanent` dial its servers, with the credentials that these expect."""
    values = permanent.agent_values(plan)
    words = ("template", "bootbridge", str(helm.CHART), f"--namespace={plan.agent_namespace}")
    done = helm.helm(*words, values=values)
    assert done.returncode == 0, done.stderr
    found = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    spec = found["DaemonSet"]["spec"]["template"]["spec"]
    arguments = spec["containers"][0]["args"]
    assert spec["containers"][0]["image"] == plan.image.reference
    assert spec["serviceAccountName"] == plan.agent_service_account
    assert f"--proxy-server-host={','.join(plan.server_hosts)}" in arguments
    assert f"--proxy-server-port={plan.ports.agent}" in arguments
    assert ("--count-server-leases=true" in arguments) == plan.publishes_leases
    assert any(word.startswith("--agent-cert=") for word in arguments) != plan.reviews_tokens
    sources = [volume["projected"]["sources"] for volume in spec["volumes"] if "projected" in volume]
    tokens = [source["serviceAccountToken"] for each in sources for source in each]
    if plan.reviews_tokens:
        assert [token["audience"] for token in tokens] == [plan.token_audience]
    else:
        assert ["audience" in token for token in tokens] == [False] * plan.prove_nodes


README_VALUES = re.findall(r"```yaml\n(.*?)```", chart_reference.DOCUMENT.read_text(), re.DOTALL)


@pytest.mark.parametrize("text", README_VALUES, ids=["certificates", "tokens"])
def test_the_values_of_the_readme_are_accepted(text: str) -> None:
    """Complete as they are: without the values that the other tests add."""
    done = helm.helm("template", helm.RELEASE, str(helm.CHART), values=yaml.safe_load(text))
    assert done.returncode == 0, done.stderr


def test_the_refusal_of_the_readme_is_the_real_one() -> None:
    done = helm.template({"servers": {"hosts": ["192.0.2.5:8132"]}})
    assert done.stderr.splitlines()[0].partition("Error: ")[2] in chart_reference.DOCUMENT.read_text()


def test_notes_name_the_next_command() -> None:
    """And with tokens and leases, the flags that the servers need."""
    values = {
        "authentication": {"method": "token", "certificate": {"secret": ""}},
        "servers": {"ca": {"configMap": "kube-root-ca.crt"}, "count": "leases"},
    }
    words = ("install", helm.RELEASE, str(helm.CHART), f"--namespace={helm.NAMESPACE}", "--dry-run=client")
    done = helm.helm(*words, values=helm.merged(helm.REQUIRED, values))
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "kubectl -n agents rollout status daemonset/tunnel-agent" in notes
    assert "--agent-namespace=agents --agent-service-account=tunnel-agent" in notes
    assert "kubectl -n kube-system get leases -l k8s-app=konnectivity-server" in notes
