"""The pages of the health and admin ports; texts are upstream's where upstream has the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from bootbridge import metrics
from bootbridge.metrics import Registry
from bootbridge.runtime.admin_host import for_own_hosts
from bootbridge.runtime.admin_http import AdminRequest, AdminResponse, Route
from bootbridge.runtime.sliced_work import SlicedWork, Steps

# Returns the document of `/status`; the URL's query selects rows. Raises ValueError for an invalid query.
StatusSource = Callable[[Mapping[str, str]], Steps[dict[str, object]]]
# Returns the route of the status page; called at the first request for it.
PageLoader = Callable[[SlicedWork], Route]
Check = Callable[[], bool]

# Not for caches, nor for pages of other sites.
_PRIVATE = (("Cache-Control", "no-store"), ("Cross-Origin-Resource-Policy", "same-origin"))
PAGE_PATHS = ("/", "/status.css", "/status.js", "/status.svg")


def server_health_routes(registry: Registry, *, ready: Check) -> dict[str, Route]:
    """The server's health port; `ready` returns whether an agent can accept dials."""

    def readiness(_request: AdminRequest) -> AdminResponse:
        return AdminResponse("ok") if ready() else AdminResponse("no connection to any proxy agent", 500)

    return _health_routes(registry, readiness)


def agent_health_routes(registry: Registry, *, connected: Check) -> dict[str, Route]:
    """The agent's health port; `connected` returns whether a server can send dials."""

    def readiness(request: AdminRequest) -> AdminResponse:
        if not connected():
            return AdminResponse("[+]ping ok\n[-]server-connected failed: no servers connected\n", 503)
        verbose = "[+]ping ok\n[+]server-connected ok\ncheck passed\n"
        return AdminResponse(verbose if "verbose" in request.query else "ok")

    return _health_routes(registry, readiness)


def server_admin_routes(registry: Registry, status: dict[str, Route]) -> dict[str, Route]:
    """The server's admin port; it has `/metrics` too, as upstream's."""
    return {"/metrics": _metrics_page(registry), **status}


def agent_admin_routes(health_port: int, status: dict[str, Route]) -> dict[str, Route]:
    """The agent's admin port redirects `/metrics` to the health port."""

    def moved(request: AdminRequest) -> AdminResponse:
        return redirect(f"//{_without_port(request.host)}:{health_port}/metrics")

    return {"/metrics": moved, **status}


def status_routes(status: StatusSource, load_page: PageLoader, *own_names: str) -> dict[str, Route]:
    """The status as JSON and as a page, for IP addresses, `localhost` and `own_names` in the Host header."""
    work = SlicedWork()
    pages = _lazy(PAGE_PATHS, lambda: load_page(work))
    return for_own_hosts({"/status": _status_document(status, work), **pages}, *own_names)


def redirect(location: str) -> AdminResponse:
    return AdminResponse(f"moved to {location}\n", 301, headers=(("Location", location),))


def _health_routes(registry: Registry, readiness: Route) -> dict[str, Route]:
    """No /status: other pods can reach an agent's health port."""
    return {
        "/healthz": lambda _request: AdminResponse("ok"),
        "/readyz": readiness,
        "/ready": readiness,
        "/metrics": _metrics_page(registry),
    }


def _metrics_page(registry: Registry) -> Route:
    return lambda _request: AdminResponse(registry.exposition(), content_type=metrics.CONTENT_TYPE)


def _lazy(paths: tuple[str, ...], load: Callable[[], Route]) -> dict[str, Route]:
    loaded: list[Route] = []

    def answer(request: AdminRequest) -> AdminResponse | Awaitable[AdminResponse]:
        if not loaded:
            loaded.append(load())
        return loaded[0](request)

    return dict.fromkeys(paths, answer)


def _status_document(status: StatusSource, work: SlicedWork) -> Route:
    async def answer(request: AdminRequest) -> AdminResponse:
        from bootbridge.runtime.status_query import encode  # only on request

        try:
            document, _ = await work.run(status(request.query))
        except ValueError as error:
            return AdminResponse(f"{error}\n", 400)
        text, _ = await work.run(encode(document))
        return AdminResponse(text, content_type="application/json", headers=_PRIVATE)

    return answer


def _without_port(host: str) -> str:
    """Returns `name`, `127.0.0.1` or `[::1]` without the port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
