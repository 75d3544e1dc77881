"""Changes that a controller may propose for one LRA.

Growth, reduction, memory, decisions without the model, and the best setting for a target out of reach.
"""
