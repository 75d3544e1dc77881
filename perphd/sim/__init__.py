"""A small simulated host in virtual time, behind the same interfaces as a real one.

``kernel`` is a tree of files with computed content; ``cgroup`` and ``machine`` fill it with the kernel's
files and rules; ``cpu`` and ``physics`` derive performance from the files' values; ``host`` combines them.
May import only perphd.domain and perphd.host.
"""
