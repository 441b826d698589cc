"""Facts that only the bootstrap node knows: network, addresses that agents dial, certificates."""
