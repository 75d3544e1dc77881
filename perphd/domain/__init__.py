"""The nouns of perphd: frozen values without I/O, clock or kernel knowledge.

Everybody may import this package; it imports nothing of perphd outside itself.
"""
