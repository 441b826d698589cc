"""Helpers without a domain; every package may import them, they import none.

Files and atomic writes, a node's file system, YAML, progress output, redaction, backoff, documents.
"""
