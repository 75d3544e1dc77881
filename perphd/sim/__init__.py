"""A small simulated host in virtual time, behind the same seams as a real one.

``kernel`` is a tree of files that compute their content; ``cgroup`` and ``machine`` fill it with the kernel's
files and rules; ``cpu`` and ``physics`` let performance emerge from what those files say; ``host`` puts them
together. May import perphd.domain and perphd.host only.
"""
