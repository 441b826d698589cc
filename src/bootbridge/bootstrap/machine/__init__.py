"""Reads or creates what only the bootstrap node knows.

`network` (addresses and routes), `address` (the ones that agents dial), `certificates`, `node_values` (all of
it as text for manifests). Runs in the `bootbridge` command on the node.
"""
