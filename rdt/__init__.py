"""resctrl for Python: the kernel's interface to cache ways, memory bandwidth and their monitoring."""
