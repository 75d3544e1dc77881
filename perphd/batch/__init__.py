"""The node's batch queue: jobs and their states, admission by distribution, planning, elastic shares.

All modules are pure functions of values, except ``store``, which keeps jobs in an SQLite file. No module
reads or writes the host, or reads a clock.
"""
