"""Runtime admission controller: when to act, which resources to give to which workload, when to take them back.

Pure functions of a snapshot: no clock, no I/O, no randomness.
"""
