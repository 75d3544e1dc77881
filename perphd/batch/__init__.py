"""The node's batch queue: jobs and their states, admission by distribution, planning, elastic shares.

Modules compute on values; none reads or writes the host, or reads a clock. Two are exceptions: ``store`` keeps
jobs in an SQLite file, and ``solver`` is also the program of a short-lived process.
"""
