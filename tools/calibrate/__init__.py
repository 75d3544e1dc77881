"""Fits the simulated node's parameters to public measurements; the results are committed in profiles/."""
