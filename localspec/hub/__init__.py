"""Pairs of models: the catalogue, their sources, the store they lie in, and whether two models pair."""
