"""Methods: one file per method or family, each with a function that returns an `Algorithm`."""
