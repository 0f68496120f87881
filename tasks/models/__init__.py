"""Networks, and linear models in fast forms."""
