"""A signal raises one exception, and never between creating a thing and recording it."""

from __future__ import annotations

import os
import signal

import pytest

from bootbridge.demo.interrupts import SIGNALS, Interrupted, Interrupts


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_becomes_exception_with_exit_code_128_plus_n(number: signal.Signals) -> None:
    with Interrupts(), pytest.raises(Interrupted) as stopped:
        os.kill(os.getpid(), number)
    assert stopped.value.exit_code == 128 + number


def test_deferred_signal_is_raised_when_the_block_ends() -> None:
    done: list[str] = []
    interrupts = Interrupts()

    def create() -> None:
        with interrupts.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("recorded")
        done.append("never")

    with interrupts, pytest.raises(Interrupted):
        create()
    assert done == ["recorded"]


def test_only_the_first_signal_is_raised() -> None:
    """A second Ctrl-C does not interrupt the clean-up."""
    with Interrupts():
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)


def test_previous_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupts():
        pass
    assert [signal.getsignal(number) for number in SIGNALS] == before
