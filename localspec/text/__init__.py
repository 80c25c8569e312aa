"""Messages to ids, and ids to text, thoughts and tool calls."""
