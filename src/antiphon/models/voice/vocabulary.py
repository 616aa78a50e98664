"""The token ids of the talker.

    0 - 177     phonemes, as the grapheme-to-phoneme library numbers them; 0 pads both ends
    178 - 180   BOS, SEP, EOS
    184 - 247   word marks: the k-th stands before the k-th word
    256 - 2303  codec ids, 40 for each second of speech

A prompt is BOS, the first word mark, phonemes with each space replaced by the next word mark, pad,
SEP. The output repeats every id between BOS and SEP and follows each with its codes, then EOS.
"""

from __future__ import annotations

PAD = 0
SPACE = 16
BOS = 178
SEP = 179
EOS = 180
FIRST_MARK = 184
NUM_MARKS = 64
FIRST_CODE = 256
NUM_CODES = 2048
VOCAB_SIZE = FIRST_CODE + NUM_CODES

CODES_PER_SECOND = 40
SAMPLE_RATE = 24_000
SAMPLES_PER_CODE = SAMPLE_RATE // CODES_PER_SECOND
