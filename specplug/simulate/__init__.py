"""A serving engine in simulated time: what a controller would do under load, without an engine."""
