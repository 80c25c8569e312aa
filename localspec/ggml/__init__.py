"""What the compute libraries that are forms of llama.cpp have in common: passes, cells, what they call back."""
