"""Facts of a GGUF file, read from its header in milliseconds, without C code; a damaged file is refused here."""
