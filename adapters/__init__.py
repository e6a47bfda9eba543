"""Engine adapters: the only code that knows an engine."""
