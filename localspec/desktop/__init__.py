"""The desktop window: a chat on the library's public API, drawn by Qt (PySide6)."""
