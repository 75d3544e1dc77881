"""``perphd profile``: tries allocations of one LRA one after another."""
