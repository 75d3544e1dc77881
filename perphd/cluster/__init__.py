"""From one node to a fleet: what a node publishes, and how placements are scored for an existing scheduler.

perphd is not a cluster scheduler. Nodes state their free capacity and what its use would cost; the scheduler decides.
"""
