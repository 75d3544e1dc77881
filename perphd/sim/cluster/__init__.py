"""Many hosts in virtual time: what schedulers do with a fleet, event by event.

Policies are those of the product (``perphd.batch``, ``perphd.sizing``, ``perphd.qos``, ``perphd.cluster.scheduling``),
imported unchanged. May import them and perphd.domain; the detailed simulated host stands beside it.
"""
