"""The machinery of Bilevel Bench: tasks, counted oracles, algorithms, runs and their records."""
