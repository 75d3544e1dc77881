"""What perphd itself costs: one tick, the whole process, and the time from detection to the last write."""
