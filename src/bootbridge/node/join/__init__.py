"""Every further node of a cluster: requests a ticket and joins; rejoins after a reboot; renews certificates.

`client` asks the join services at `endpoints` through `service_client`, which requires `control_plane_keys`;
`ticket_check` validates the ticket, `flow` joins with it, `ticket_files` writes its certificates. `rejoin`
runs after a reboot, `serving_renewal` when the kubelet's certificate is due. All of it runs on the instance,
in `bootbridge node run` and `bootbridge node renew`.
"""
