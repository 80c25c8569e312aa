"""The only room that talks to llama.cpp. No pointer, buffer view or foreign exception leaves it."""
