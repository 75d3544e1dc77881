"""Published controllers behind perphd's `Policy` seam: each after its paper's state machine, pure and small.

They divide cores, cache ways and bandwidth throttles; what a paper turns besides (frequency, network) has no
setting here and is left out, as each module says.
"""
