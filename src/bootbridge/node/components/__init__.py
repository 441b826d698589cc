"""Downloads the components of a node (`download`), verifies their hashes and installs them (`install`).

A tar.gz is unpacked by `archive`. Runs on the instance, as the first step of an init or a join.
"""
