"""What says where a module lies, before PyInstaller looks for it."""
