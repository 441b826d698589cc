"""A small Kubernetes client. Runs in both proxies, in the join service, and in `bootbridge up` and `down`.

In the order in which a call uses them:

``kubeconfig``      address and credentials of the API server, as ``access`` holds them
``kinds``           the Kubernetes kinds that we use
``objects``         object references, requests about them, and calls that expect 404 and 409
``client``          sends requests over kept-alive ``http_connection``s, within a ``rate_limit``
``blocking_client`` the same for the installer, without async
``list_watch``      the list-then-watch state machine; ``reflector`` runs it
``token_review``    authenticates agents by their service account token
``leases``          a server's lease: published, counted, and garbage-collected by three modules

Bodies are JSON in both directions; ``--kube-api-content-type`` has no effect. Every API server supports it,
and our objects are too small to gain from protobuf.
"""
