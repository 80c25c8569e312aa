"""What runs where a frozen program starts, before its own code; `rthooks.dat` says for which modules."""
