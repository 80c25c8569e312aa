"""The catalogue: one TOML file per pair. Read by `localspec.pairs.catalogue`; holds no code."""
