"""Puts the tunnel on a bootstrap node and removes it.

In the order in which data meets them: `plan` (every decision), `machine` (facts of the node), `render`
(files), `ignition` (files into bootstrap.ign), `install` (`up`, `down`, `status`), `diagnose` (`check`,
`doctor`, `gather`), `firewall` (cloud rules). All of it runs in the `bootbridge` command, nothing in the
proxy processes.
"""
