"""Numba kernels: arrays in, arrays out. Wrappers check, kernels do not."""
