"""Methods for streams of tasks, each of which is seen once; only what they remember comes again."""
