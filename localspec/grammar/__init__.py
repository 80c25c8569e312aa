"""Which tokens a grammar or a JSON schema allows next."""
