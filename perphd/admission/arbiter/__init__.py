"""Divides the host: cores, cache and bandwidth among LRAs, and the rest for batch."""
