"""Record what whisper.cpp makes of the files of tests/conversion/test_whisper.py.

python tests/conversion/record_whisper.py > tests/conversion/golden/whisper.json

It needs pywhispercpp 1.5.1 (whisper.cpp 1.8.5), whose library is called directly: load the file, compute the spectrum
of a sound, encode, decode three tokens. The logits are compared with those of transformers. whisper.cpp loads files of
F32 but stops at their convolutions on a CPU: of these only loading is recorded.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.containers import whisper_files as cases
from tests.conversion.test_whisper import KINDS

import weighbridge as wb

IDS = [cases.TOKENS + 1, cases.TOKENS + 2, 7]
SOUND = (0.3 * np.sin(2 * np.pi * 440 * np.arange(32000) / 16000 * (1 + np.arange(32000) / 16000))).astype(np.float32)


def library() -> Any:
    from importlib.util import find_spec

    found = find_spec("_pywhispercpp")
    assert found is not None
    assert found.origin is not None
    (path,) = (Path(found.origin).parent / "pywhispercpp.libs").glob("libwhisper*")
    return ctypes.CDLL(str(path))


def call(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library(), name)
    function.restype = result
    return function(*arguments)


def logits(file: Path, kind: str) -> np.ndarray[Any, Any] | None:
    loaded = call("whisper_init_from_file", ctypes.c_void_p, str(file).encode())
    if not loaded:
        raise SystemExit(f"{kind} isn't loaded")
    context = ctypes.c_void_p(loaded)
    if kind == "F32":
        return None
    samples = SOUND.ctypes.data_as(ctypes.c_void_p)
    ids = (ctypes.c_int * len(IDS))(*IDS)
    assert call("whisper_pcm_to_mel", ctypes.c_int, context, samples, len(SOUND), 1) == 0
    assert call("whisper_encode", ctypes.c_int, context, 0, 1) == 0
    assert call("whisper_decode", ctypes.c_int, context, ids, len(IDS), 0, 1) == 0
    out = call("whisper_get_logits", ctypes.POINTER(ctypes.c_float), context)
    return np.ctypeslib.as_array(out, (len(IDS), cases.ROWS))[-1].copy()


def main() -> None:
    import torch
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "whisper-tiny"
        cases.folder(source)
        model = WhisperForConditionalGeneration.from_pretrained(source, dtype=torch.float32).eval()
        whole = WhisperFeatureExtractor()(SOUND, sampling_rate=16000, return_tensors="pt").input_features
        features = whole[..., : 2 * cases.AUDIO]  # whisper.cpp computes 30 s, too, and encodes as many frames
        with torch.no_grad():
            expected = model(features, decoder_input_ids=torch.tensor([IDS])).logits[0, -1].numpy()
        for kind in KINDS:
            file = Path(folder) / f"ggml-{kind}.bin"
            wb.convert(source, file, dtype=kind.lower())
            row: dict[str, Any] = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
            actual = logits(file, kind)
            if actual is not None:
                row["correlation"] = round(float(np.corrcoef(actual, expected)[0, 1]), 6)
            found[kind] = row
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
