"""Many hosts in virtual time: simulates schedulers on a fleet, event by event.

Policies are those of the product (``perphd.batch``, ``perphd.sizing``, ``perphd.forecast``, ``perphd.qos``,
``perphd.cluster.scheduling``), imported unchanged. This package may import them and perphd.domain, but not the detailed
simulated host.
"""
