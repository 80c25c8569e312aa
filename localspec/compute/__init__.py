"""What a compute library is: protocols and plain data; no library and no C code."""
