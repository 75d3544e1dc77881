"""``perphd profile``: allocations of one LRA tried one after another."""
