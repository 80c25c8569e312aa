"""Measuring: what drafting gains on this machine, what it could and should gain, and that it changes no answer."""
