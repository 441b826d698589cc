"""Builds container images without a container runtime, for `bootbridge image` and the lab.

`layer` packs files, `shared_libraries` and `python_runtime` collect them, `recipes` decides what each image
contains, `reference` checks its name, and `oci` writes the archive.
"""
