"""Evaluates past changes of one LRA from samples, and holds what a decision may know about it."""
