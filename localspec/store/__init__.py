"""What is on this machine: files of pairs, checked by their sha256, and what is done with them."""
