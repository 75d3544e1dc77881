"""Runtime admission controller: decides when to protect an LRA, with which resources, and when to give them back.

Pure functions of a snapshot: no clock, no I/O, no randomness.
"""
