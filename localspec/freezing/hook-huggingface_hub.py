"""Of huggingface_hub a program needs downloads: what it could do with other packages stays out."""

excludedimports = [
    "IPython",
    "PIL",
    "aiohttp",
    "fastai",
    "fastapi",
    "fastcore",
    "gradio",
    "graphviz",
    "keras",
    "mcp",
    "openai",
    "pydantic",
    "pydot",
    "safetensors",
    "tensorboardX",
    "tensorflow",
    "torch",
]
