"""GBNF: llama.cpp's grammar notation, read and written as the grammar library wants it. Text in, text out."""
