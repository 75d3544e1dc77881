"""Runtime admission controller: decides when to protect an LRA, with which resources, and when to give them back.

Pure functions of a snapshot: no clock, no I/O, no randomness. ``perph`` is the policy. Each package is one part of a
decision and imports only packages later in this list: controller and arbiter, features, moves, review, inference,
detector.
"""
