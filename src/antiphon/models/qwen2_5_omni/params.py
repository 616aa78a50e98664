"""Names: of what callers may say about speech, and of the file that the speakers are in. Neither
torch nor vllm is imported here.
"""

from __future__ import annotations

SPEAKER = "speaker"
"""One of the checkpoint's speakers, in upper or lower case."""

SEED = "seed"
"""Of the noise that the vocoder makes its sound of: the same codes with the same seed sound the
same. Also the option of the edge `codes` for requests without."""

SPEAKERS_FILE = "spk_dict.pt"
"""In a checkpoint's folder: by speaker's name, what transformers' `load_speakers` reads."""
