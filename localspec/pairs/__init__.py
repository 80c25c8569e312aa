"""Pairs as they are described: the catalogue, pair files, names of a hub's models and their pins."""
