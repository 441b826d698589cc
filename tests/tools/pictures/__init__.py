"""The pictures of README and docs, made from real runs: `make pictures`."""
