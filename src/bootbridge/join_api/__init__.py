"""What the bootstrapper on an instance (`node`) and the join service in the cluster share.

In the order in which a join meets them; no process runs from here:

instance, instance_documents    an instance as its metadata describes it
cluster_spec, components        the cluster that an init creates
policy, metadata_settings       the join policy that an operator writes
messages                        ticket requests and tickets
kubelet_certificate             the kubelet's CSR, checked, and its serving certificate, signed
node_addresses                  the addresses that a node uses
kubeadm_defaults                kubeadm's file locations and port
errors                          a request that is refused, or must be repeated later
"""
