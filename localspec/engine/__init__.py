"""A target and perhaps a draft: loaded, measured and ready to decode."""
