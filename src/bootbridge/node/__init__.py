"""The program on every instance, `bootbridge node run`: makes the instance a node once, by init or by join.

`run` reads the configuration and builds everything; `supervisor` runs InitServer (`init`) and JoinClient
(`join`) concurrently; `lock` admits one of the two flows, which then uses `machine` (implemented by `kubeadm`
and `components`). `stages` is how flows report progress; `own_identity` and `status` serve `node enrol` and
`node status`. The join service, which runs in the cluster, is the package `join_service`.
"""
