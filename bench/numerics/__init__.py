"""Descent rules, linear solvers, feasible sets and estimators, for methods and tasks alike."""
