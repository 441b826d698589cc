"""Throw-away authorities and the certificates they issue.

Imported by the demo, the command line and tests only: the server and agent processes
read certificates through `ssl` and never load this package's dependencies.
"""
