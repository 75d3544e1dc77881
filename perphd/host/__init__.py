"""The kernel's interfaces, one module each, typed, with the file system injected.

May import ``perphd.domain`` and ``rdt``; knows nothing of policies, samples' consumers or tasks.
"""
