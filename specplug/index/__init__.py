"""Stateful token indexes, each with check_invariants()."""
