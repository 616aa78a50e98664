"""The `qwen3-tts` pipeline: text to speech with Qwen3-TTS (12 Hz)."""
