"""Models that a process of its own computes, so that its end is an error here and not the end of the application."""
