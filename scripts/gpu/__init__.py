"""Full-scale runs on a GPU that is lent for minutes at a time."""
