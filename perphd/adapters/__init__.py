"""Processes beside the daemon that speak to a cluster's engine. The resident daemon imports nothing of them."""
