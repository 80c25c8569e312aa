"""llama.cpp through llama-cpp-python, as a compute library. No pointer, buffer view or foreign exception leaves it."""
