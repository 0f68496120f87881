"""Methods that reach a feasible set through its linear minimisation oracle, and their rivals."""
