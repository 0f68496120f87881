"""A run's folder and all that touches it."""
