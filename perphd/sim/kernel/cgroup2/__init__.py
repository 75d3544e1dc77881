"""cgroup v2: groups, their files, and the rules of the tree."""

from perphd.sim.kernel.cgroup2.cpu import IDLE_WEIGHT
from perphd.sim.kernel.cgroup2.group import SimCgroup
from perphd.sim.kernel.cgroup2.rules import CONTROLLERS, Kernel
from perphd.sim.kernel.cgroup2.tree import CgroupTree

__all__ = ["CONTROLLERS", "IDLE_WEIGHT", "CgroupTree", "Kernel", "SimCgroup"]
