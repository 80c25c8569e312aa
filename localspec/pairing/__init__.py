"""Whether a draft can draft for a target, from metadata alone."""
