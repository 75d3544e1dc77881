"""Leak test of perphd: hundreds of workloads come and go for hours, and everything that could grow is fitted."""
