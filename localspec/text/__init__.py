"""Ids to text and text to ids: prompts, streaming, stop strings."""
