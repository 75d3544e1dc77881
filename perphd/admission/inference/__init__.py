"""Resource inference: the lattice of allocations, its bounds, and the search for the best one with the model."""
