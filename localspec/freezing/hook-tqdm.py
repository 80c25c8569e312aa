"""The progress of downloads is localspec's own: a notebook, a window and tables, which tqdm can use, stay out."""

excludedimports = [
    "IPython",
    "dask",
    "ipywidgets",
    "keras",
    "matplotlib",
    "pandas",
    "rich",
    "tensorflow",
    "tkinter",
]
