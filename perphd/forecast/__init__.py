"""Forecasts: distributions, peak predictors of a host, series forecasters and the history of jobs.

All modules are pure functions of observations, except ``history``, which keeps its counts in an SQLite file.
No module imports the host's interfaces, and none reads a clock.
"""
