"""The command line. Importing it imports neither vllm nor torch; commands import what they use."""
