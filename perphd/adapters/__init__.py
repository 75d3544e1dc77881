"""Processes beside the daemon that connect to cluster schedulers. The daemon imports none of them."""
