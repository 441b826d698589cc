"""Finds out what is wrong.

`check` (configuration), `doctor` (each hop of a call), `gather` (a bundle for support).
"""
