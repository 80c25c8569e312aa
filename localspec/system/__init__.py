"""The machine and its disk: folders, locks, partial files, memory, processes and threads. It knows no models."""
