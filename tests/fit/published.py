# ruff: noqa: E501 - a table
"""Published models by the keys that memory depends on, and llama.cpp's own figures for them.

The figures are of `llama_get_memory_breakdown` for files with metadata alone (llama.cpp 0c1e57098, CPU backend), bytes
of the context. Facts of configs, not files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Keys = dict[str, Any]


def _keys(architecture: str, layers: int, embedding: int, heads: int, **more: Any) -> Keys:
    at = {"block_count": layers, "embedding_length": embedding, "attention.head_count": heads}
    found = at | {name.replace("__", "."): value for name, value in more.items()}
    return {"general.architecture": architecture, **{f"{architecture}.{k}": v for k, v in found.items()}}


def _attention(
    architecture: str,
    layers: int,
    embedding: int,
    heads: int,
    kv: Any,
    head: int,
    value: int | None = None,
    **more: Any,
) -> Keys:
    width = {"attention.key_length": head, "attention.value_length": head if value is None else value}
    return _keys(architecture, layers, embedding, heads, **{"attention.head_count_kv": kv, **width, **more})


def _ssm(conv: int, inner: int, state: int, group: int | None = None) -> dict[str, int]:
    found = {"ssm.conv_kernel": conv, "ssm.inner_size": inner, "ssm.state_size": state}
    return found if group is None else found | {"ssm.group_count": group}


_NEMOTRON = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
_MLA = {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
_GEMMA_4 = [i % 6 != 5 for i in range(60)]

MODELS: dict[str, Keys] = {
    "llama-3.1-8b": _attention("llama", 32, 4096, 32, 8, 128, feed_forward_length=14336, vocab_size=128256),
    "qwen3-0.6b": _attention("qwen3", 28, 1024, 16, 8, 128),
    "qwen3-30b-a3b": _attention("qwen3moe", 48, 2048, 32, 4, 128),
    "gemma-2-9b": _attention("gemma2", 42, 3584, 16, 8, 256, attention__sliding_window=4096),
    "gemma-3-27b": _attention("gemma3", 62, 5376, 32, 16, 128, attention__sliding_window=1024),
    "gemma-3n-e4b": _attention("gemma3n", 35, 2048, 8, 2, 256, attention__sliding_window=512),
    "gemma-4-26b-a4b": _attention(
        "gemma4", 30, 2816, 16, [8 if slides else 2 for slides in _GEMMA_4[:30]], 512, attention__sliding_window=1024,
        attention__sliding_window_pattern=_GEMMA_4[:30], attention__key_length_swa=256, attention__value_length_swa=256,
    ),
    "gemma-4-31b": _attention(
        "gemma4", 60, 5376, 32, [16 if slides else 4 for slides in _GEMMA_4], 512, attention__sliding_window=1024,
        attention__sliding_window_pattern=_GEMMA_4, attention__key_length_swa=256, attention__value_length_swa=256,
    ),
    "gpt-oss-20b": _attention("gpt-oss", 24, 2880, 64, 8, 64, attention__sliding_window=128),
    "llama-4-scout": _attention("llama4", 48, 5120, 40, 8, 128),
    "cohere2-7b": _attention("cohere2", 32, 4096, 32, 8, 128, attention__sliding_window=4096),
    "deepseek-v3": _attention("deepseek2", 61, 7168, 128, 1, 576, 512, **{**_MLA}),
    "kimi-k2": _attention("deepseek2", 61, 7168, 64, 1, 576, 512, **{**_MLA}),
    "deepseek-v3, without MLA keys": _attention("deepseek2", 61, 7168, 128, 128, 192, 128),
    "deepseek-v3.2": _attention(
        "deepseek32", 61, 7168, 128, 1, 576, 512, attention__indexer__key_length=128, **{**_MLA}
    ),
    "deepseek-v4-flash": _attention(
        "deepseek4", 43, 4096, 64, 1, 512, attention__indexer__key_length=128, attention__sliding_window=128,
        attention__compress_ratios=[0, 0, 4, *[128, 4] * 20],
    ),
    "qwen3.5-27b": _attention("qwen35", 64, 5120, 24, 4, 256, **_ssm(4, 6144, 128, 16)),
    "qwen3.5-27b, with its MTP layer": _attention(
        "qwen35", 65, 5120, 24, 4, 256, nextn_predict_layers=1, **_ssm(4, 6144, 128, 16)
    ),
    "qwen3-next-80b-a3b": _attention("qwen3next", 48, 2048, 16, 2, 256, **_ssm(4, 4096, 128, 16)),
    "falcon-h1-7b": _attention("falcon-h1", 44, 3072, 12, 2, 128, **_ssm(4, 3072, 256, 1)),
    "granite-4.0-h-small": _attention(
        "granitehybrid", 40, 4096, 32, [8 if i in (5, 15, 25, 35) else 0 for i in range(40)], 128,
        **_ssm(4, 8192, 128, 1),
    ),
    "nemotron-h-8b": _attention(
        "nemotron_h", 56, 4096, 32, [8 if kind == "*" else 0 for kind in _NEMOTRON], 128,
        feed_forward_length=[21504 if kind == "-" else 0 for kind in _NEMOTRON], **_ssm(4, 8192, 128, 8),
    ),
    "jamba-v0.1": _attention(
        "jamba", 32, 4096, 32, [8 if i % 8 == 4 else 0 for i in range(32)], 128, **_ssm(4, 8192, 16)
    ),
    "lfm2-1.2b": _attention(
        "lfm2", 16, 2048, 32, [8 if i in (2, 5, 8, 10, 12, 14) else 0 for i in range(16)], 64, shortconv__l_cache=3
    ),
    "mamba2-2.7b": _keys("mamba2", 64, 2560, 0, **_ssm(4, 5120, 128, 1)),
    "mamba-2.8b": _keys("mamba", 64, 2560, 0, **_ssm(4, 5120, 16)),
    "rwkv7-2.9b": _keys("rwkv7", 32, 2560, 0, wkv__head_size=64),
    "kimi-linear-48b": _attention(
        "kimi-linear", 27, 2304, 32, [int(i % 4 == 3 or i == 26) for i in range(27)], 576, 512, kda__head_dim=128,
        ssm__conv_kernel=4, **{**_MLA},
    ),
}  # fmt: skip


class Figures(NamedTuple):
    """Bytes of the context: f16, one sequence, batches of 512 but where the column says otherwise."""

    c4096: int
    c32768: int
    c5000: int
    four_unified: int
    four: int
    ubatch_1024: int
    q8_0: int
    swa_full: int
    no_flash: int


FIGURES: dict[str, Figures] = {
    "llama-3.1-8b": Figures(536870912, 4294967296, 671088640, 1073741824, 1073741824, 1073741824, 570425344, 1073741824, 1073741824),
    "qwen3-0.6b": Figures(469762048, 3758096384, 587202560, 939524096, 939524096, 939524096, 499122176, 939524096, 939524096),
    "qwen3-30b-a3b": Figures(402653184, 3221225472, 503316480, 805306368, 805306368, 805306368, 427819008, 805306368, 805306368),
    "gemma-2-9b": Figures(1409286144, 6429868032, 1673527296, 2818572288, 2818572288, 2290089984, 1169817600, 2818572288, 2202009600),
    "gemma-3-27b": Figures(989855744, 3338665984, 1073741824, 2634022912, 3288334336, 1543503872, 704118784, 4160749568, 1325400064),
    "gemma-3n-e4b": Figures(67108864, 301989888, 75497472, 150994944, 201326592, 117440512, 53477376, 335544320, 100663296),
    "gemma-4-26b-a4b": Figures(398458880, 985661440, 419430400, 1111490560, 1426063360, 587202560, 256245760, 1845493760, 566231040),
    "gemma-4-31b": Figures(1593835520, 3942645760, 1677721600, 4445962240, 5704253440, 2348810240, 1024983040, 7381975040, 2264924160),
    "gpt-oss-20b": Figures(119537664, 824180736, 144703488, 226492416, 276824064, 232783872, 116981760, 402653184, 220200960),
    "llama-4-scout": Figures(805306368, 2894069760, 1006632960, 1610612736, 1610612736, 1610612736, 855638016, 1610612736, 1610612736),
    "cohere2-7b": Figures(536870912, 1526726656, 620756992, 1073741824, 1073741824, 771751936, 383254528, 1073741824, 721420288),
    "deepseek-v3": Figures(287834112, 2302672896, 359792640, 575668224, 575668224, 575668224, 305823744, 575668224, 575668224),
    "kimi-k2": Figures(287834112, 2302672896, 359792640, 575668224, 575668224, 575668224, 305823744, 575668224, 575668224),
    "deepseek-v3, without MLA keys": Figures(20468203520, 163745628160, 25585254400, 40936407040, 40936407040, 40936407040, 21747466240, 40936407040, 40936407040),
    "deepseek-v3.2": Figures(351797248, 2814377984, 439746560, 703594496, 703594496, 703594496, 373784576, 703594496, 703594496),
    "deepseek-v4-flash": Figures(78790656, 271466496, 85671936, 425263104, 260112384, 128860160, 62201856, 433209344, 106315776),
    "qwen3.5-27b": Figures(425328640, 2304376832, 492437504, 1164443648, 1164443648, 693764096, 442105856, 693764096, 693764096),
    "qwen3.5-27b, with its MTP layer": Figures(425328640, 2304376832, 492437504, 1164443648, 1164443648, 693764096, 442105856, 693764096, 693764096),
    "qwen3-next-80b-a3b": Figures(179699712, 884342784, 204865536, 517472256, 517472256, 280363008, 185991168, 280363008, 280363008),
    "falcon-h1-7b": Figures(324853760, 1616699392, 370991104, 930316288, 930316288, 509403136, 336388096, 509403136, 509403136),
    "granite-4.0-h-small": Figures(221753344, 691515392, 238530560, 752795648, 752795648, 288862208, 225947648, 288862208, 288862208),
    "nemotron-h-8b": Figures(183672832, 653434880, 200450048, 600473600, 600473600, 250781696, 187867136, 250781696, 250781696),
    "jamba-v0.1": Figures(84541440, 554303488, 101318656, 203948032, 203948032, 151650304, 88735744, 151650304, 151650304),
    "lfm2-1.2b": Figures(50495488, 402817024, 63078400, 101318656, 101318656, 100827136, 53641216, 100827136, 100827136),
    "mamba2-2.7b": Figures(171900928, 171900928, 171900928, 687603712, 687603712, 171900928, 171900928, 171900928, 171900928),
    "mamba-2.8b": Figures(24903680, 24903680, 24903680, 99614720, 99614720, 24903680, 24903680, 24903680, 24903680),
    "rwkv7-2.9b": Figures(21626880, 21626880, 21626880, 86507520, 86507520, 21626880, 21626880, 21626880, 21626880),
    "kimi-linear-48b": Figures(77922304, 309133312, 86179840, 245628928, 245628928, 110952448, 79986688, 110952448, 110952448),
}  # fmt: skip
