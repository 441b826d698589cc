"""Finds out what is wrong with an installation; changes nothing.

`check` verifies configuration before and while it is used, `doctor` tests each hop of a call, `gather` writes
a bundle for support. Runs in the operator's `bootbridge` process.
"""
