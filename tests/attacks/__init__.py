"""Attacks, one file per attacker: each test runs an attack against real processes and asserts that it fails.

docs/security.md lists the attackers and links to the tests.
"""
