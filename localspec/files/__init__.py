"""Files on this machine: room on the disk, locks, partial files, the home folder."""
