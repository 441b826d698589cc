"""Any JSON, with the right names of fields or wrong ones, loads or gives an OperatorError."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.bootstrap.plan import install_config, record
from bootbridge.common import documents
from bootbridge.errors import OperatorError
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.policy import OperatorPolicy, load_operator_policy
from bootbridge.metadata.static import InstanceFile
from bootbridge.node.configuration import NodeSettings, _normalised

LOADERS: dict[str, tuple[Any, Callable[[bytes], Any]]] = {
    "node": (
        NodeSettings,
        lambda data: documents.convert(NodeSettings, _normalised(documents.parse(data, "x")), "x"),
    ),
    "policy": (OperatorPolicy, lambda data: load_operator_policy(data, "x")),
    "cluster": (ClusterSpec, lambda data: documents.load(ClusterSpec, data, "x")),
    "instance": (InstanceFile, lambda data: documents.load(InstanceFile, data, "x")),
    "plan": (record.PlanRecord, lambda data: record.load(data, "x")),
    "install-config": (install_config.InstallConfig, lambda data: install_config.parse(data, "x")),
}


def names_in(schema: dict[str, Any]) -> list[str]:
    places = [schema, *schema.get("$defs", {}).values()]
    return sorted({name for place in places for name in place.get("properties", {})})


def values(names: list[str]) -> st.SearchStrategy[Any]:
    texts = st.sampled_from(["", "x", "none", "tpm", "v1", "v1.36.3", "10.0.0.0/8", "10.0.0.1", "/x"])
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | texts | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(names) | st.text(max_size=3), inner, max_size=6)
        ),
        max_leaves=12,
    )


@pytest.mark.parametrize("name", LOADERS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_json_loads_or_gives_an_operator_error(name: str, data: st.DataObject) -> None:
    kind, load = LOADERS[name]
    document = data.draw(values(names_in(documents.json_schema(kind))))
    try:
        load(json.dumps(document).encode())
    except OperatorError:
        pass
