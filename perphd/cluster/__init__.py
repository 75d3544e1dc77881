"""From one node to a fleet: the document of a node, and scores of placements for an existing scheduler.

perphd is not a cluster scheduler. Nodes state their free capacity and what its use would cost; the scheduler decides.
"""
