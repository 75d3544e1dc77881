"""cgroup v1: one hierarchy per controller, over the groups whose work the v2 tree accounts for.

The rules are those observed on a running kernel (6.18); tests/sim replays them.
"""

from perphd.sim.kernel.cgroup1.hierarchy import V1Group, V1Hierarchy
from perphd.sim.kernel.cgroup1.mounts import HIERARCHIES, mount_v1

__all__ = ["HIERARCHIES", "V1Group", "V1Hierarchy", "mount_v1"]
