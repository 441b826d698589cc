"""How many sockets the kernel lets us have."""

from __future__ import annotations

import resource


def allow_as_many_as_possible() -> None:
    """Shells and service managers give 1,024 and allow many more to whoever asks; Go's programs ask."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError):
        pass  # what we have has to do
