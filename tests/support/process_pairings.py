"""Pairings as test parameters: what involves an original is interop, ours × ours runs everywhere."""

from __future__ import annotations

import pytest

from tests.support.tunnel_programs import OUR_AGENT, OUR_SERVER, OURS_ALONE, Pairing


def _param(pairing: Pairing) -> object:
    marks = () if pairing == OURS_ALONE else (pytest.mark.interop,)
    return pytest.param(pairing, id=str(pairing), marks=marks)


ALL = [_param(OURS_ALONE), _param(OUR_SERVER), _param(OUR_AGENT)]

# For promises that an original on the other side cannot keep.
with_our_server = pytest.mark.parametrize("pairing", [_param(OURS_ALONE), _param(OUR_SERVER)], indirect=True)
with_our_agent = pytest.mark.parametrize("pairing", [_param(OURS_ALONE), _param(OUR_AGENT)], indirect=True)
