"""A small simulated host in virtual time, behind the same interfaces as a real one.

``kernel`` holds trees of kernel files with computed content and the kernel's rules; ``machine`` adds files of /proc and
/sys. ``inforce`` reads the settings from the trees, and ``node`` derives performance from them. ``host`` combines
these. ``cluster`` simulates a fleet.
May import only perphd.domain and perphd.host; ``cluster`` also the product's pure policies.
"""
