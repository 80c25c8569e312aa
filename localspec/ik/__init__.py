"""ik_llama.cpp as a compute library: faster passes of a few tokens on a CPU."""
