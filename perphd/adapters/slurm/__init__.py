"""Slurm: the publisher of one node."""
