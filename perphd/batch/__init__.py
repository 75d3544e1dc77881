"""The node's batch queue: jobs and their states, admission by distribution, planning, elastic shares.

Everything here is a pure function of values, except ``store``, which keeps jobs in an SQLite file. Nothing reads or
writes the host, and nothing reads a clock.
"""
