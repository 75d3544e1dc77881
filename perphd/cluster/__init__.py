"""From one node to a fleet: what a node publishes, and how placements are scored for an existing scheduler.

perphd is no cluster scheduler. Nodes state what they can take and what it would cost; the scheduler decides with that.
"""
