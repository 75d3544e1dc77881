"""Published controllers behind the same seam, to compare with: each after its paper's state machine, pure and small.

They divide cores, cache ways and bandwidth throttles; what a paper turns besides (frequency, network) has no
setting here and is left out, as each module says.
"""
