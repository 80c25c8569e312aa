"""The catalogue: one TOML file per pair. Read by `localspec.hub.catalogue`; holds no code."""
