"""The policy bench: scenarios x policies x seeds on the node model, beside the optimum that exhaustive search finds."""
