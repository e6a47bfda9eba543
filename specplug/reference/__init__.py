"""Slow, obvious twins of the kernels; what they return is the definition."""
