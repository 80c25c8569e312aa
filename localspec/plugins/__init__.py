"""localspec as a plugin of other programs. Each is loaded at their every start, and must be light until it is used."""
