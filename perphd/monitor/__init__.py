"""Monitoring: kernel files and SLI sources become Samples, which the store keeps.

Reads only, never writes to the kernel. The package has no clock: every call receives the time.
"""
