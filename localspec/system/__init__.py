"""The machine and its disk, knowing no models: folders, locks, partial files, memory, processes and threads."""
