"""Abilities that a configuration can switch or set.

Exploration, circuit breaker, preparation for load spikes, confinement of cache polluters, own cache ways, floors,
ceilings and change windows.
"""
