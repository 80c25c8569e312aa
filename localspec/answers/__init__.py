"""One answer, its queue and its history."""
