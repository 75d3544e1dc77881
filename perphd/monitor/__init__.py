"""Monitoring: kernel files and SLI sources become Samples, which the store keeps.

Reads only, never writes to the kernel. It has no clock: every call gets the time.
"""
