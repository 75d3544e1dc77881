"""The domain types of perphd: frozen values without I/O, clock or kernel knowledge.

Every package may import this one. It imports nothing else of perphd.
"""
