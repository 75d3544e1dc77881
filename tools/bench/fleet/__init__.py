"""Schedulers of the published works on simulated fleets."""
