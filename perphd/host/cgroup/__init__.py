"""Control groups of version 2, version 1 and the hybrid of both behind one typed interface."""

from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, Layout, discover

__all__ = ["Hierarchies", "Hierarchy", "Layout", "discover"]
