"""Of huggingface_hub a program needs downloads: what else it could do with packages that happen to be there stays out."""

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
