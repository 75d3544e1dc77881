"""Sizes: what a workload should reserve, decided from snapshots and answered as values.

Nothing here reads or writes the host. The resource shaper and the memory fit return actions; the isolation layer alone
carries them out.
"""
