"""Sizes and step sizes that both sides of a comparison have. This file needs no package."""

BATCH = 64
BLOCK = 80  # rows of one of SABA's blocks, of which there are whole ones only
T = 10  # inner steps
Q = 10  # stochastic steps, or terms, for the linear system
K = 10  # iterations of CG, terms of the Neumann series after the first
ETA = 0.5  # BOME's
RATIO = 1.0  # F2SA's ratio of the step sizes of x and y
LAM = 1.0  # F2SA's first multiplier
C = 0.01  # g has c |y|^2: so well conditioned a problem lets float32 agree to 1e-4
INNER_LR = 0.05  # also the Neumann series' eta: BOAT's is the inner step size
SYSTEM_LR = 0.05
OUTER_LR = 10.0
