"""The log bundle: all that somebody far away needs to say what went wrong, and nothing secret.

bundle      the archive; everything goes in through its one door, `LogBundle.add` (``bundle``)
redaction   what that door takes out (``redaction``)
sources     on the node and in the cluster (``node_sources``, ``cluster_sources``)
remote      the same from a bootstrap node without Python, over ssh (``remote``, ``install_dir``)
analysis    the failing stage in a sentence (``analysis``)
"""
