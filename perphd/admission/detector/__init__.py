"""Anomaly detector: judges whether an LRA misses its target, from which cause, and who takes the resource."""
