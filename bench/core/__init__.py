"""What an author of a method or a task reads: task, method, counted oracle, named randomness."""
