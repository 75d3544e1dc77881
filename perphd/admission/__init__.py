"""Runtime admission controller: decides when to protect an LRA, with which resources, and when to give them back.

Pure functions of a snapshot: no clock, no I/O, no randomness. ``perph`` is the policy; each package is one part of a
decision and imports only those below it: controller and arbiter, features, moves, review, inference, detector.
"""
