"""Problems: one file per family, each with a function that returns a `bench.core.task.Task`."""
