"""Sizes and step sizes of stochastic.py, for both of its sides. This file needs no package."""

BATCH = 64
T = 10  # inner steps
Q = 10  # steps, or terms, for the linear system
RATIO = 1.0  # F2SA's ratio of the step sizes of x and y
LAM = 1.0  # F2SA's first multiplier
C = 0.01  # g has c |y|^2: so well conditioned a problem lets float32 agree to 1e-4
INNER_LR = 0.05
SYSTEM_LR = 0.05
OUTER_LR = 10.0
