"""A real Kubernetes control plane on loopback, and the comparison of placements on it (``make cluster``)."""
