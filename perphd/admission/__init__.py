"""Runtime Admission Controller: when to act, what to give to whom, when to take it back.

Pure functions of a snapshot: no clock, no I/O, no randomness.
"""
