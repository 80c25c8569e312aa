"""`localspec chat`: a conversation at the terminal, or one answer to one prompt."""
