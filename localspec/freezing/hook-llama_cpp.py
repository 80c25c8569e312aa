"""Of llama-cpp-python a program needs its library: what the package can do with others stays out."""

excludedimports = ["PIL", "huggingface_hub", "jsonschema", "openai", "requests", "transformers"]
