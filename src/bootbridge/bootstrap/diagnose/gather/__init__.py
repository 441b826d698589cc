"""Writes a log bundle for support: everything needed to find a fault, and no secrets.

bundle           the archive; every file passes `LogBundle.add`, which removes secrets
node_sources, cluster_sources
                 what is collected on the node and from the cluster
remote, install_dir
                 the same from a bootstrap node without Python, over ssh
analysis         the failed stage in a sentence
gathering        collects all sources and combines the results
"""
