"""A signal stops the demo once, and never between making a thing and noting it down."""

from __future__ import annotations

import os
import signal

import pytest

from bootbridge.demo.interrupts import SIGNALS, Interrupted, Interrupts


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_becomes_an_exception_with_the_shells_exit_code(number: signal.Signals) -> None:
    """128 + n, as for a process that the signal killed."""
    with Interrupts(), pytest.raises(Interrupted) as stopped:
        os.kill(os.getpid(), number)
    assert stopped.value.exit_code == 128 + number


def test_a_held_signal_comes_when_the_block_ends() -> None:
    """Making and noting down are one."""
    made: list[str] = []
    interrupts = Interrupts()

    def make() -> None:
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGINT)
            made.append("noted")
        made.append("never")

    with interrupts, pytest.raises(Interrupted):
        make()
    assert made == ["noted"]


def test_only_the_first_signal_is_raised() -> None:
    """An impatient second Ctrl-C does not interrupt the clean-up."""
    with Interrupts():
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)


def test_the_handlers_from_before_are_put_back() -> None:
    """We are guests in this process."""
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupts():
        pass
    assert [signal.getsignal(number) for number in SIGNALS] == before
