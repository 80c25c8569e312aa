"""The method: speculative decoding on arrays of logits. numpy only; no model, no text, no files."""
