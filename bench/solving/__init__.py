"""Solves a problem that is given as Python functions: no configuration, no run folder."""
