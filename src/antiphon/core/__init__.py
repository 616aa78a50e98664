"""Pure state machines: no vllm, no torch, no clocks of their own.

Each is an enum and a transition table.
"""
