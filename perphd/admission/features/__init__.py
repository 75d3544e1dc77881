"""Features that the configuration can switch or tune.

Exploration, circuit breaker, preparation for load spikes, confinement of cache polluters, own cache ways, floors,
ceilings and change windows.
"""
