"""The script for bootstrap nodes without Python: shell and jq sources, and the module that assembles them."""
