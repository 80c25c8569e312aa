"""Which models belong together: catalogue, pair files, names and pins of a hub's models; whether two of them fit."""
