"""Fits the simulated node's parameters to public measurements; what it finds is committed in profiles/."""
