"""Metric Monitor and Data Collector: kept-open kernel files and SLI sources -> Samples, and the store of all of it.

Reads only, never writes to the kernel. Has no clock: time comes in with every call.
"""
