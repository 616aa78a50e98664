"""Qwen3-Omni-MoE: text and audio in, text and speech out."""
