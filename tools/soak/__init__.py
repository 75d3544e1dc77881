"""Does perphd leak? Hundreds of workloads that come and go, for hours, and slopes of everything that could grow."""
