"""Descent rules, linear solvers and feasible sets."""
