"""Whisper's mel filters: Slaney's scale and norm over 201 bins of a transform of 400 samples at 16 kHz.

The values equal those of OpenAI's `mel_filters.npz` (from librosa.filters.mel) bit for bit. transformers computes the
same filters in F64; rounded to F32 they differ in the last bit of some.
"""

from __future__ import annotations

import math
from typing import Final

SAMPLE_RATE: Final = 16000
WINDOW: Final = 400
HOP: Final = 160
BINS: Final = WINDOW // 2 + 1
# Slaney's scale: linear up to 1 kHz (15 mels), then 27 steps per factor of 6.4.
_HZ_PER_MEL: Final = 200 / 3
_CORNER_HZ: Final = 1000.0
_CORNER_MEL: Final = _CORNER_HZ / _HZ_PER_MEL
_STEP: Final = math.log(6.4) / 27


def filters(bands: int) -> bytes:
    """Returns F32 of bands x `BINS`, in C order."""
    import numpy as np

    top = _CORNER_MEL + math.log(SAMPLE_RATE / 2 / _CORNER_HZ) / _STEP
    mels = np.linspace(0.0, top, bands + 2)
    hertz = mels * _HZ_PER_MEL
    above = mels >= _CORNER_MEL
    hertz[above] = _CORNER_HZ * np.exp(_STEP * (mels[above] - _CORNER_MEL))
    ramps = np.subtract.outer(hertz, np.linspace(0.0, SAMPLE_RATE / 2, BINS))
    widths = np.diff(hertz)[:, None]
    rising, falling = -ramps[:-2] / widths[:-1], ramps[2:] / widths[1:]
    weights = np.maximum(0.0, np.minimum(rising, falling)).astype("<f4")
    weights *= (2.0 / (hertz[2:] - hertz[:-2]))[:, None]  # rounded twice, as in librosa
    return weights.tobytes()
