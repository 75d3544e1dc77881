"""Control groups of version 1, version 2 and hybrid hosts behind one typed interface."""

from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, Layout, discover

__all__ = ["Hierarchies", "Hierarchy", "Layout", "discover"]
