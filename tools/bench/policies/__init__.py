"""The policy bench: scenarios x policies x seeds on the node model, compared with the optimum of a full search."""
