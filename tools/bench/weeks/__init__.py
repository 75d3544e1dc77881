"""Accuracy of reports: short simulated weeks, each run in observe and in enforce from the same seed."""
