"""A stage: a vLLM engine with the stage scheduler and workers.

It is driven by one loop and spoken to with typed messages. `messages`, `spec` and `resolve` import
neither vllm nor torch; the orchestrator uses only those and the clients.
"""
