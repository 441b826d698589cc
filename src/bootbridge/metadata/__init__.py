"""Where an instance learns who it is and who else is there: a file, an HTTP service, or DNS.

Each source is a `Metadata` (`node/instance.py`). What it says is read anew at every call, because an
infrastructure is often not complete yet when its first instances boot.
"""
