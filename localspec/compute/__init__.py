"""What a compute library is: protocols and plain data, no implementation."""
