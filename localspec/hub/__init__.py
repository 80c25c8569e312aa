"""Where models come from: a hub and a package index, found, fetched and verified."""
