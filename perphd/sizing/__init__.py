"""Sizing: decides from snapshots how much a workload should reserve, and returns values.

No module reads or writes the host. The resource shaper and the memory fit return actions; only the isolation
layer carries them out.
"""
