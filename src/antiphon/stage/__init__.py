"""A stage: a vLLM engine with the stage scheduler and workers, driven by one loop, spoken to with typed messages.

`messages` and `spec` import neither vllm nor torch; the orchestrator uses only those and the clients.
"""
