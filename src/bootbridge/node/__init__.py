"""The program on every new instance: it makes the instance a node, by init or by join, once.

`supervisor` runs the InitServer and the JoinClient side by side; `node_lock` lets one of them pass. What the
winner does is in `init_flow` and `join_flow`; the cluster's side of a join is `join_service`.
"""
