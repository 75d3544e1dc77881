"""A simulated resctrl file system (Intel RDT, AMD QoS): the tree, the machines that it can simulate, and faults to
inject.

tree = ResctrlTree(MACHINES["captured"], root.make("/sys/fs/resctrl"), Threads())
tree.mount()
"""

from perphd.sim.kernel.resctrl.faults import Fault, FaultPlan, Interference, Operation
from perphd.sim.kernel.resctrl.hardware import (
    LINUX_6_1,
    LINUX_6_12,
    LINUX_6_15,
    BandwidthControl,
    CacheControl,
    Domain,
    Kernel,
    Monitoring,
    RdtMachine,
)
from perphd.sim.kernel.resctrl.machines import MACHINES
from perphd.sim.kernel.resctrl.tasks import TaskSource, Threads
from perphd.sim.kernel.resctrl.tree import MOUNT_POINT, ResctrlTree

__all__ = [
    "LINUX_6_1",
    "LINUX_6_12",
    "LINUX_6_15",
    "MACHINES",
    "MOUNT_POINT",
    "BandwidthControl",
    "CacheControl",
    "Domain",
    "Fault",
    "FaultPlan",
    "Interference",
    "Kernel",
    "Monitoring",
    "Operation",
    "RdtMachine",
    "ResctrlTree",
    "TaskSource",
    "Threads",
]
