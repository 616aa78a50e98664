"""Sizes that the stages of the `voice` pipeline are set up with, in tokens and codes."""

from __future__ import annotations

THINKER_CONTEXT = 2048
THINKER_REPLY = 96
"""Tokens of an answer; longer ones of this small model ramble."""

TALKER_CONTEXT = 1024
CODE2WAV_CONTEXT = 1024

CONTEXT_CODES = 16
"""Codes on either side that the sound of a code depends on: with as many (or all there are) the
chunks together equal the utterance decoded at once. 0.4 s."""

HEARING_CONTEXT = 448
"""What Whisper's decoder takes."""
HEARING_REPLY = 224
"""Tokens of what is said in a window: half of that, as OpenAI's own implementation has it."""
WINDOW_S = 30.0
"""Seconds of sound that Whisper's encoder takes at a time."""

MAX_SPEECH_PARTS = 256
"""Sentences of one call; each is a request of its own."""
