"""The one-way lock between init and join, and the records that survive a crash or a reboot.

`flow_inputs` is what a flow needs to be resumed; `bootstrap_record` stores it with the phase until the next
boot; `node_lock` lets one flow start and measures the cluster ID into the register; `node_state` is what the
instance remembers across reboots.
"""
