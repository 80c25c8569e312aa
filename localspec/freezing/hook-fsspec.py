"""huggingface_hub asks for fsspec, and nobody for the other places that it can read from."""

excludedimports = [
    "PIL",
    "aiohttp",
    "dask",
    "distributed",
    "pandas",
    "paramiko",
    "pyarrow",
    "pygit2",
    "pytest",
    "requests",
]
