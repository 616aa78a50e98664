"""Prefill and decode of one model as two stages, with the KV cache handed from one to the other."""
