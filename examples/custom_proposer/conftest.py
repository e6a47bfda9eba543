"""Turns on the conformance kit."""

pytest_plugins = ["specplug.testing.plugin"]
