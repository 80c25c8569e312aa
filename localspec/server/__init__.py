"""OpenAI-compatible HTTP on a loaded engine. Needs the extra `server`."""
