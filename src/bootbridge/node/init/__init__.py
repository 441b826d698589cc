"""The first node of a cluster: the server on the instance, the operator's client, and the init itself.

On the instance, `bootbridge node run`: `listener` accepts connections, `attempt_limit` slows down guesses of
the init secret, `server` validates the request and starts `flow`, which runs kubeadm init and then
`join_service_setup`; `events` and `log_buffer` keep what the client may fetch later; `tunnel` and
`tunnel_removal` install and remove the tunnel.

On the operator's machine, `bootbridge node init`: `session` reads the files, `client` watches the init,
`report` displays it, `master_secret` and `admin_kubeconfig` handle the two files that remain.
"""
