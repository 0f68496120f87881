"""A package outside of the Bilevel Bench: ridge regression, and a method for it."""
