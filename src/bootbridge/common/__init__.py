"""Helpers without a domain.

Files and trees of files, the host's file system, YAML, progress, redaction, backoff.

Every room may import from here; nothing here imports a room.
"""
