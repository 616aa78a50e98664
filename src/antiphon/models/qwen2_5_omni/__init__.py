"""The Qwen2.5-Omni family: text and speech of one checkpoint."""
