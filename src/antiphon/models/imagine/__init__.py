"""Text that becomes a picture: a small network that attends to the KV cache of who wrote it."""
