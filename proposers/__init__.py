"""Proposers, one file or small folder each; found through the entry-point group specplug.proposers."""
