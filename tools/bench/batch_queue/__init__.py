"""Benches of the batch queue: admission and plans on a simulated node, and overcommit on public series."""
