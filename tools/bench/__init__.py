"""Cost of perphd itself: one tick, the whole process, and the time from detection to the last write."""
