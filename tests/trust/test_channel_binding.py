"""The binding: equal for both ends of one session, and for nothing else."""

from __future__ import annotations

import hashlib
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.trust.attested.channel_binding import EndpointRole, channel_binding

Parts = tuple[str, EndpointRole, bytes, bytes, bytes]
SESSION: Parts = ("label", "client", b"c" * 32, b"s" * 32, b"key")
parts = st.tuples(
    st.text(max_size=4),
    st.sampled_from(["client", "server"]),
    st.binary(max_size=4),
    st.binary(max_size=4),
    st.binary(max_size=4),
)


def test_the_layout_is_stable() -> None:
    """Both ends may be of different versions; a change of layout needs a new domain."""
    written = b"".join(
        len(part).to_bytes(4, "big") + part
        for part in (
            b"bootbridge attested TLS v1",
            b"label",
            b"client",
            b"c" * 32,
            b"s" * 32,
            hashlib.sha256(b"key").digest(),
        )
    )
    assert channel_binding(*SESSION) == hashlib.sha256(written).digest()


def test_every_part_changes_the_binding() -> None:
    sessions: list[Parts] = [
        SESSION,
        ("other", *SESSION[1:]),
        ("label", "server", *SESSION[2:]),
        ("label", "client", b"x" * 32, b"s" * 32, b"key"),
        ("label", "client", b"c" * 32, b"x" * 32, b"key"),
        ("label", "client", b"s" * 32, b"c" * 32, b"key"),
        ("label", "client", b"c" * 32, b"s" * 32, b"other key"),
    ]
    assert all(channel_binding(*one) != channel_binding(*other) for one, other in combinations(sessions, 2))


@settings(deadline=None)
@given(parts, parts)
def test_different_sessions_have_different_bindings(one: Parts, other: Parts) -> None:
    """However their parts are cut: "ab", "c" is not "a", "bc"."""
    assert (channel_binding(*one) == channel_binding(*other)) == (one == other)
