"""Measuring: what drafting gains on this machine, what it could gain, and what it should."""
