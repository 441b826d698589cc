"""A page of another site cannot read the status by DNS rebinding."""

from __future__ import annotations

import pytest

from bootbridge.runtime.admin_host import for_own_hosts, is_own_host
from bootbridge.runtime.admin_http import AdminRequest, AdminResponse


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8095",
        "[::1]:8095",
        "[::1]",
        "10.0.0.7:80",
        "localhost",
        "LocalHost:9",
        "Admin:1",
    ],
)
def test_addresses_and_own_names_are_served(host: str) -> None:
    assert is_own_host(host, ("", "admin"))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8095",
        "127.0.0.1.evil.example",
        "localhost.evil.example:1",
        "",
        "[evil]:1",
        "a:b:c",
    ],
)
def test_other_names_are_not(host: str) -> None:
    assert not is_own_host(host, ("", "admin"))


def test_a_route_refuses_other_names_before_it_runs() -> None:
    calls = []

    def route(request: AdminRequest) -> AdminResponse:
        calls.append(request.host)
        return AdminResponse("secret")

    checked = for_own_hosts({"/": route})["/"]
    refused = checked(AdminRequest("/", {}, "evil.example"))
    assert isinstance(refused, AdminResponse)
    assert (refused.status, calls) == (421, [])
    assert "secret" not in refused.body
    assert checked(AdminRequest("/", {}, "localhost:1")) == AdminResponse("secret")
