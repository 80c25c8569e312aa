"""What is in order on this machine and what is not, even where half of what localspec needs is missing."""
