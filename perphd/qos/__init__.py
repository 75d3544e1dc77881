"""Quality of service: bands, the ledger of a host, unused capacity for copper, contention back-off, event mode.

Everything here is a pure function of values. Nothing reads or writes the host, and nothing reads a clock.
"""
