"""Record every round of a policy and replay it bit for bit: the regression test of decisions."""
