"""Compares the address rules in Python with those in jq, on generated networks."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from importlib import resources
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.bootstrap.machine import address, network
from bootbridge.errors import OperatorError
from tests.support.not_run import needs_program

RULES = (resources.files("bootbridge.bootstrap.render.shell") / "address.jq").read_text()
# Few and close together, so that they collide, and are just inside or outside of networks.
V4 = ["10.0.0.5", "10.0.0.6", "10.0.127.255", "10.0.128.0", "169.254.1.1", "127.0.0.2", "192.168.1.5"]
V6 = ["fd00:1::5", "fd00:1:0:7fff::1", "fd00:1:0:8000::", "fe80::7", "::1", "2001:db8::5", "64:ff9b::a00:5"]
NETWORKS = [
    "10.0.0.0/16",
    "10.0.128.0/17",
    "10.0.0.4/30",
    "0.0.0.0/0",
    "fd00:1::/48",
    "fd00:1:0:8000::/49",
    "::/0",
]
FLAGS = ["secondary", "dynamic", "deprecated", "temporary", "tentative", "dadfailed"]


@st.composite
def addresses(draw: st.DrawFn) -> dict[str, Any]:
    text = draw(st.sampled_from(V4 + V6))
    whole = 32 if ipaddress.ip_address(text).version == 4 else 128
    return {
        "family": "inet" if whole == 32 else "inet6",
        "local": text,
        "prefixlen": draw(st.sampled_from([24, whole])),
        "scope": draw(st.sampled_from(["global", "global", "global", "link", "host"])),
        **dict.fromkeys(draw(st.sets(st.sampled_from(FLAGS), max_size=1)), True),
    }


links = st.lists(
    st.fixed_dictionaries(
        {
            "flags": st.sampled_from([["UP", "LOWER_UP"], ["UP", "LOWER_UP"], ["UP", "NO-CARRIER"], []]),
            "addr_info": st.lists(addresses(), max_size=4),
        }
    ),
    max_size=3,
).map(lambda made: [{"ifname": f"nic{number}", **link} for number, link in enumerate(made)])


def routes(sources: list[str]) -> st.SearchStrategy[list[dict[str, str]]]:
    devices = st.sampled_from(["nic0", "nic1", "nic2"])
    known = st.fixed_dictionaries({"dev": devices, "prefsrc": st.sampled_from(sources)})
    return st.one_of(
        st.just([]), st.tuples(known).map(list), st.tuples(st.fixed_dictionaries({"dev": devices})).map(list)
    )


def by_python(
    links: list[Any], routes: dict[str, Any], explicit: list[str], networks: list[str], families: list[int]
) -> list[str]:
    found = network.parse(json.dumps(links), {int(v): json.dumps(route) for v, route in routes.items()})
    try:
        decision = address.decide(
            [ipaddress.ip_address(each) for each in explicit],
            [ipaddress.ip_network(each) for each in networks],
            found,
            families,
        )
    except OperatorError as error:
        return [f"error {error.args[0]}"]
    return [f"address {each}" for each in decision.addresses] + [
        f"warning {each}" for each in decision.warnings
    ]


def by_jq(
    links: list[Any], routes: dict[str, Any], explicit: list[str], networks: list[str], families: list[int]
) -> list[str]:
    inputs = {"links": links, "routes": routes, "networks": networks, "families": families}
    arguments = [word for name, value in inputs.items() for word in ("--argjson", name, json.dumps(value))]
    command = ["jq", "--raw-output", "--null-input", *arguments, "--arg", "given", " ".join(explicit), RULES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_program("jq")
@settings(deadline=None, max_examples=60)
@given(
    links=links,
    route4=routes(V4),
    route6=routes(V6),
    explicit=st.lists(st.sampled_from(["10.0.0.5", "fd00:1::5", "203.0.113.7"]), max_size=2),
    networks=st.lists(st.sampled_from(NETWORKS), min_size=1, max_size=3, unique=True),
    families=st.sampled_from([[4], [6], [4, 6], [6, 4]]),
)
def test_python_and_shell_decide_the_same(
    links: list[Any],
    route4: list[Any],
    route6: list[Any],
    explicit: list[str],
    networks: list[str],
    families: list[int],
) -> None:
    """Same addresses in the same order, same warnings, same error texts."""
    routes = {"4": route4, "6": route6}

    python = by_python(links, routes, explicit, networks, families)

    assert by_jq(links, routes, explicit, networks, families) == python
