"""Interfaces of the kernel and the system, one module each, with the file system injected.

May import ``perphd.domain`` and ``rdt``; independent of policies, of the consumers of samples, and of tasks.
"""
