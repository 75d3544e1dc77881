"""Back-off from contended disks, links and memory bandwidth."""
