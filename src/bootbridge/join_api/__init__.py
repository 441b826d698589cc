"""Types that the bootstrapper on an instance (`node`) and the join service in the cluster share.

In order of use: `instance` (what the infrastructure knows), `cluster_spec` and `policy` (what the operator
writes), `messages` (what travels), `refusals` (how a request is denied). No process runs from here.
"""
