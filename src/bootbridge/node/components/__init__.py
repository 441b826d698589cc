"""Fetches the components of a node, checks their hashes and installs them."""
