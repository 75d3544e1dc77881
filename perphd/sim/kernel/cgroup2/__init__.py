"""cgroup v2: groups, their files, and the rules of the tree."""

from perphd.sim.kernel.cgroup2.group import CONTROLLERS, IDLE_WEIGHT, CgroupTree, SimCgroup

__all__ = ["CONTROLLERS", "IDLE_WEIGHT", "CgroupTree", "SimCgroup"]
