"""Quality of service: bands, the ledger of a host, overcommit for copper, contention backoff, event mode.

All modules are pure functions of values. None reads or writes the host, or reads a clock.
"""
