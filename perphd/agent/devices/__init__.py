"""Backoff from contended disks, links and memory bandwidth."""
