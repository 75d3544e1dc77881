"""The simulated kernel: trees of kernel files held in memory that answer as the kernel answers.

``vfs`` holds the nodes, ``faces`` what programs see of them in this process (``SimFs`` for perphd, ``RawFs`` for
rdt); what lies in the files is told by the packages beside them.
"""

from perphd.sim.kernel.faces import RawFs, SimFs
from perphd.sim.kernel.vfs import Directory, File, OpenFile, Reader, Writer, caller_uid, refuse

__all__ = ["Directory", "File", "OpenFile", "RawFs", "Reader", "SimFs", "Writer", "caller_uid", "refuse"]
