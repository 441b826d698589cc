"""`bootbridge demo`: one server, two agents and a webhook on this machine, called through the tunnel.

In the order in which the command meets them: a *workspace* (directory, namespaces, processes: all that the
clean-up removes), an *environment* (who listens on which address), *certificates*, *programs* (how each is
started and when it is ready), *calls* as a kube-apiserver makes them, and the *scenario*, whose *steps* are
printed as they happen. All of it runs in the process of the command, which starts `webhook` and, with
--keep, `bootbridge forward` as programs of their own.
"""
