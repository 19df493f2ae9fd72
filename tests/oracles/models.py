"""Small models that can see a fault, made with transformers in seconds.

A tiny model at default initialisation proves nothing: with q unpermuted or a norm reset its answers hardly move. So
here every parameter is random, 1-D ones too; queries and keys are large enough for attention to be sharp (a wrong
rotation shows), epsilon is large enough to matter, the sliding window and the rope scaling's original length are
shorter than the probe. Dimensions are multiples of 32, so that every tensor a converter would quantize can be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.oracles import families, mtp, plain, twins, vocabularies
from tests.oracles.case import Case
from tests.oracles.llamacpp import answer

F32 = NDArray[np.float32]
PROBE = 96  # tokens in a probe: past WINDOW and past ROPE_ORIGINAL
WINDOW = 24
ROPE_ORIGINAL = 32

_DECODER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 3e-3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 2000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ROPE_ORIGINAL,
}


_QWEN: dict[str, Any] = _DECODER | {
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "rms_norm_eps": 1e-2,  # norms of q and k hide a smaller one
    "bos_token_id": None,
    "eos_token_id": vocabularies.QWEN_TOKENS - 1,
    "pad_token_id": vocabularies.QWEN_TOKENS - 3,
}
_QWEN_MOE: dict[str, Any] = _QWEN | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def _theta(theta: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


CASES = {
    case.name: case
    for case in (
        # Llama 1 and 2: as many key as query heads, output of its own, SentencePiece
        Case("llama", "LlamaConfig", "spm", _DECODER | _theta(10000.0) | {"num_key_value_heads": 4}),
        # Llama 3.x: rope scaling, head_dim that isn't hidden / heads, grouped queries, tied embeddings, byte-level BPE,
        # shards
        Case(
            "llama3",
            "LlamaConfig",
            "bpe",
            _DECODER
            | {"rope_parameters": _LLAMA3_ROPE, "head_dim": 32, "tie_word_embeddings": True}
            | {"bos_token_id": vocabularies.BPE_SIZE - 3, "eos_token_id": vocabularies.BPE_SIZE - 2},
            {"max_shard_size": "150KB"},
        ),
        # the same model under transformers 4's config, which most published models and mlx_lm have
        Case(
            "llama3-v4",
            "LlamaConfig",
            "bpe",
            _DECODER
            | {"rope_parameters": _LLAMA3_ROPE, "head_dim": 32, "tie_word_embeddings": True}
            | {"bos_token_id": vocabularies.BPE_SIZE - 3, "eos_token_id": vocabularies.BPE_SIZE - 2},
            v4=True,
        ),
        # biases wherever the family may have them
        Case("llama-bias", "LlamaConfig", "spm", _DECODER | _theta(500.0) | {"attention_bias": True, "mlp_bias": True}),
        # linear rope scaling
        Case(
            "llama-linear",
            "LlamaConfig",
            "spm",
            _DECODER | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
        ),
        # yarn rope scaling, past the length it was trained for
        Case(
            "llama-yarn",
            "LlamaConfig",
            "spm",
            _DECODER
            | {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 10000.0,
                    "original_max_position_embeddings": 64,
                }
            },
        ),
        Case(
            "mistral",
            "MistralConfig",
            "spm-json",
            _DECODER | _theta(1000.0) | {"sliding_window": WINDOW, "head_dim": 16},
        ),
        # experts one by one, under the names that transformers 4 wrote and 5 still writes
        Case(
            "mixtral",
            "MixtralConfig",
            "spm",
            _DECODER | _theta(1e6) | {"num_local_experts": 6, "num_experts_per_tok": 2},
        ),
        # the same model stacked and fused, as transformers 5 holds it
        Case(
            "mixtral-fused",
            "MixtralConfig",
            "spm",
            _DECODER | _theta(1e6) | {"num_local_experts": 6, "num_experts_per_tok": 2},
            {"save_original_format": False},
        ),
        # Qwen 2: biases on q, k, v; tied; more rows than tokens
        Case("qwen2", "Qwen2Config", "qwen", _QWEN | {"tie_word_embeddings": True}),
        # and past its length by yarn, as its card recommends, under transformers 4's config
        Case(
            "qwen2-yarn",
            "Qwen2Config",
            "qwen",
            _QWEN
            | {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 5000.0,
                    "original_max_position_embeddings": 64,
                }
            },
            v4=True,
        ),
        # and with experts, one of which every token takes
        Case("qwen2moe", "Qwen2MoeConfig", "qwen", _QWEN_MOE | {"shared_expert_intermediate_size": 128}, v4=True),
        Case(
            "qwen2moe-fused",
            "Qwen2MoeConfig",
            "qwen",
            _QWEN_MOE | {"shared_expert_intermediate_size": 128},
            {"save_original_format": False},
        ),
        # Qwen 3: norms on q and k, heads wider than hidden / heads
        Case("qwen3", "Qwen3Config", "qwen", _QWEN | {"head_dim": 32}),
        Case(
            "qwen3moe",
            "Qwen3MoeConfig",
            "qwen",
            _QWEN_MOE | {"head_dim": 32, "norm_topk_prob": True},
            v4=True,
        ),
        Case(
            "qwen3moe-fused",
            "Qwen3MoeConfig",
            "qwen",
            _QWEN_MOE | {"head_dim": 32, "norm_topk_prob": True},
            {"save_original_format": False},
        ),
        Case(
            "bert",
            "BertConfig",
            "wordpiece",
            {
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "max_position_embeddings": 128,
                "layer_norm_eps": 5e-2,
                "pad_token_id": 0,
            },
        ),
    )
} | {name: case for name, case in families.CASES.items() if case.whole}
DECODERS = [name for name, case in CASES.items() if not case.bert and case.runs]

# (case, type) that our conversion is compared with the reference converter's in. `@`: the type that the folder is in.
REFERENCES = [
    ("bert", "f16"),
    ("bert", "f32"),
    ("bert", "q8_0"),
    ("llama", "f32"),
    ("llama", "q8_0"),
    ("llama-bias", "f32"),
    ("llama-linear", "bf16"),
    ("llama-yarn", "f32"),
    ("llama3", "f16"),
    ("llama3", "f32"),
    ("llama3-v4", "f32"),
    ("llama3@bfloat16", "auto"),
    ("llama3@bfloat16", "q8_0"),
    ("mistral", "f16"),
    ("mixtral", "f32"),
    ("mixtral", "q8_0"),
    ("mixtral@bfloat16", "bf16"),
    ("mixtral@float16", "auto"),
    ("qwen2", "f32"),
    ("qwen2", "q8_0"),
    ("qwen2-yarn", "f32"),
    ("qwen2@bfloat16", "auto"),
    ("qwen2moe", "f32"),
    ("qwen2moe", "q8_0"),
    ("qwen2moe-fused", "f32"),
    ("qwen3", "f16"),
    ("qwen3", "f32"),
    ("qwen3moe", "f32"),
    ("qwen3moe", "q8_0"),
    ("qwen3moe-fused", "f32"),
    ("qwen3moe@bfloat16", "bf16"),
    *families.REFERENCES,
]

_BUFFERS = "e_score_correction_bias"  # that of routers, which transformers holds as a buffer

Spreads = tuple[tuple[tuple[str, ...], tuple[float, float]], ...]

# What a parameter is drawn from, by the end of its name: mean, standard deviation. The rest: (0, 0.15).
_SPREADS = (
    (("norm.weight", "LayerNorm.weight"), (1.0, 0.25)),
    (("q_proj.weight", "k_proj.weight", "query.weight", "key.weight"), (0.0, 0.22)),
    (("embed_tokens.weight", "word_embeddings.weight"), (0.0, 0.5)),
    (("gate.weight",), (0.0, 0.5)),
)


def randomize(model: Any, seed: int, spreads: Spreads = ()) -> None:
    """Every parameter, 1-D ones too, drawn anew; bf16-exact, so that the same model can be stored as f32 or bf16."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        learnt = ((name, b) for name, b in model.named_buffers() if name.endswith("layer_scalar"))  # of Gemma 4
        for name, parameter in (*model.named_parameters(), *learnt):
            parameter.copy_(drawn(name, parameter.shape, generator, spreads))
        for name, buffer in model.named_buffers():
            if name.endswith(_BUFFERS):
                buffer.copy_(drawn(name, buffer.shape, generator, spreads))


def drawn(name: str, shape: Sequence[int], generator: Any, spreads: Spreads) -> Any:
    """A parameter's random numbers, in bf16."""
    import torch

    mean, std = next((s for ends, s in (*spreads, *_SPREADS) if name.endswith(ends)), (0.0, 0.15))
    return (torch.randn(tuple(shape), generator=generator) * std + mean).bfloat16()


TOKENS = "d2t"  # from the number of each token that a draft model chooses from to the token's: here every other one
SLOPES = "relative_pe.slopes"  # ALiBi's
ROUTES = "tid2eid"  # how the names of tables end that choose the experts of a token
EXPERTS = 6  # of the small models that have such a table


def alibi(heads: int) -> list[float]:
    """The slopes of ALiBi's paper: for another number of heads than a power of two, every other one of twice the power
    before is added."""
    if heads & (heads - 1):
        power = 1 << heads.bit_length() - 1
        return alibi(power) + alibi(2 * power)[::2][: heads - power]
    return [2.0 ** (-8 * n / heads) for n in range(1, heads + 1)]


def routes(name: str, shape: Sequence[int], generator: Any) -> Any:
    """Such a table: for each token different experts."""
    import torch

    first = torch.randint(0, EXPERTS, (shape[0], 1), generator=generator.manual_seed(len(name)))
    return (first + torch.arange(shape[1])) % EXPERTS


def _language_models() -> Any:
    """AutoModelForCausalLM, with a class that transformers leaves out of its list."""
    import transformers

    transformers.AutoModelForCausalLM.register(
        transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True
    )
    return transformers.AutoModelForCausalLM


def build(case: Case, folder: Path, *, dtype: str = "float32") -> Path:
    """`folder` with weights, config, tokenizer and, for the embedding model, its pooling files."""
    import torch
    import transformers

    folder.mkdir(parents=True)
    if case.shapes:
        return _published(case, folder, dtype)
    config = getattr(transformers, case.config)(vocab_size=vocabularies.SIZES[case.tokenizer], **case.options)
    auto = transformers.AutoModel if case.bert else _language_models()
    torch.manual_seed(0)
    model = getattr(transformers, case.head)(config) if case.head else auto.from_config(config)
    if (
        case.head is not None and "T5For" in case.head and case.said.get("tie_word_embeddings") is False
    ):  # which the class ties all the same
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    randomize(model, 20, case.spreads)
    narrow = model if dtype == "float32" else model.to(getattr(torch, dtype))  # a tower's table may be complex
    narrow.save_pretrained(folder, **case.save)
    if case.further:
        _add(folder / "model.safetensors", case, dtype)
    if case.packed:
        case.packed(folder)
    if case.mtp:
        mtp.add(folder)
    if case.v4:
        _respell(folder / "config.json")
    if case.said:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | case.said, indent=2))
    if case.generation:
        (folder / "generation_config.json").write_text(json.dumps(case.generation))
    vocabularies.WRITERS[case.tokenizer](folder)
    if case.pools:
        _write_pooling(folder, config.get_text_config().hidden_size)
    return folder


def _add(path: Path, case: Case, dtype: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(21)
    more = {n: drawn(n, s, generator, case.spreads).to(getattr(torch, dtype)) for n, s in case.further.items()}
    save_file(load_file(path) | more, path, {"format": "pt"})


def _published(case: Case, folder: Path, dtype: str) -> Path:
    """A model of a class that transformers hasn't, as its publisher lays it out."""
    import torch
    from safetensors.torch import save_file

    size, generator = vocabularies.SIZES[case.tokenizer], torch.Generator().manual_seed(20)
    tensors = {n: drawn(n, s, generator, case.spreads).to(getattr(torch, dtype)) for n, s in case.shapes.items()}
    tensors |= {n: routes(n, s, torch.Generator()) for n, s in case.shapes.items() if n.endswith(ROUTES)}
    tensors |= {n: torch.arange(*s) for n, s in case.shapes.items() if n.endswith(TOKENS)}
    tensors |= {n: torch.tensor(alibi(s[0])).reshape(s) for n, s in case.shapes.items() if n.endswith(SLOPES)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {"architectures": [case.config], "vocab_size": size, "torch_dtype": dtype, **case.options, **case.said}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    if not case.target:
        vocabularies.WRITERS[case.tokenizer](folder)
    if case.packed:
        case.packed(folder)
    if case.finish:
        case.finish(folder)
    if case.pools:
        _write_pooling(folder, config.get("hidden_size") or config["n_embd"])
    return folder


def _respell(path: Path) -> None:
    path.write_text(json.dumps(respelled(json.loads(path.read_text())), indent=2))


def respelled(config: dict[str, Any]) -> dict[str, Any]:
    """A config of transformers 5 in the words of transformers 4, a younger class's in those of its first."""
    config = dict(config)
    if config["model_type"] in ("gemma4_text", "gemma4_unified_text"):
        return _in_words(config)
    scaling = dict(config.pop("rope_parameters", None) or {})
    if scaling:
        full = dict(scaling.get("full_attention", scaling))
        config["rope_theta"] = full.pop("rope_theta")
        if "sliding_attention" in scaling:
            config["rope_local_base_freq"] = scaling["sliding_attention"]["rope_theta"]
        if (share := full.pop("partial_rotary_factor", None)) is not None:
            config["partial_rotary_factor"] = share
        config["rope_scaling"] = None if full["rope_type"] == "default" else full
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    if config["model_type"] == "modernbert":
        config |= {
            "global_rope_theta": config.pop("rope_theta"),
            "local_rope_theta": config.pop("rope_local_base_freq"),
        }
        del config["rope_scaling"], config["layer_types"]
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    if "text_config" in config:
        config["text_config"] = respelled(config["text_config"])
    return config


def _in_words(config: dict[str, Any]) -> dict[str, Any]:
    """A Gemma 4's config as it is published: what layers that attend to all tokens have, once for all of them."""
    own = next(iter(config.pop("per_layer_config", {}).values()), None)
    if own is None:
        return config
    keys = {"num_global_key_value_heads": own.get("num_key_value_heads")}
    return {**config, "global_head_dim": own["head_dim"], **keys}


def _write_pooling(folder: Path, size: int) -> None:
    """The files by which sentence-transformers says "mean pooling"."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    modes = {"cls_token": False, "mean_tokens": True, "max_tokens": False, "mean_sqrt_len_tokens": False}
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": size} | {f"pooling_mode_{name}": on for name, on in modes.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


@cache
def probe(vocab_size: int, length: int = PROBE) -> tuple[int, ...]:
    """Token ids over the whole vocabulary but its first ids (special in all our tokenizers); fixed."""
    return tuple(int(i) for i in np.random.default_rng(7).integers(5, vocab_size - 5, length))


def probe_of(name: str, length: int = PROBE) -> tuple[int, ...]:
    """The probe of a case, by its name."""
    return probe(vocabularies.SIZES[CASES[name.partition("@")[0]].tokenizer], length)


def load(folder: Path, *, embedding: bool = False, **config: Any) -> Any:
    """The model as transformers runs it: f32, eager attention. `config` overrides its settings."""
    import torch
    import transformers

    torch.set_num_threads(1)  # as ggml, see llamacpp.THREADS
    if (twin := twins.of(folder)) is not None:
        return twin.load(folder, **config) if isinstance(twin, plain.Plain) else twin.load(folder)
    settings = transformers.AutoConfig.from_pretrained(folder)
    classifier = settings.architectures[0].endswith("ForSequenceClassification")
    encoder = transformers.AutoModelForSequenceClassification if classifier else transformers.AutoModel
    auto = encoder if embedding else _language_models()
    if settings.model_type in ("t5", "mt5", "umt5", "glm5_next", "chameleon", "muse_glimmer"):
        auto = getattr(transformers, settings.architectures[0])
    # of UMT5's class: whether what goes into the output is divided. Said before, it would part the embeddings.
    late = {key: config.pop(key) for key in ("tie_word_embeddings",) if key in config}
    for key, value in config.items():
        setattr(settings, key, value)
    model = auto.from_pretrained(folder, config=settings, dtype=torch.float32, attn_implementation="eager")
    for key, value in late.items():
        setattr(model.config, key, value)
    return model.eval()


def settings(folder: Path) -> dict[str, Any]:
    """A folder's config as transformers understands it; where it has no class, as it is written."""
    from transformers import AutoConfig

    if twins.of(folder) is not None:
        config = dict(json.loads((folder / "config.json").read_text()))
        if (scaling := config.get("rope_scaling")) and "long_factor" in scaling:
            scaling.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
        return config
    return dict(AutoConfig.from_pretrained(folder).to_dict())


def logits(folder: Path, ids: Sequence[int], **config: Any) -> F32:
    """transformers' f32 logits at every position: [len(ids), vocabulary]. Of an encoder with a decoder those of
    `answer(ids)`: [len(answer(ids)), vocabulary]."""
    import torch

    model = load(folder, **config)
    answered = {"decoder_input_ids": torch.tensor([answer(ids)])} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        out: F32 = model(torch.tensor([list(ids)]), **answered).logits[0].numpy()
    return out


def embedding(folder: Path, ids: Sequence[int], **config: Any) -> F32:
    """The mean of the last hidden states, [hidden]; of a classifier its numbers, [labels]."""
    import torch

    with torch.no_grad():
        found = load(folder, embedding=True, **config)(torch.tensor([list(ids)]))
        out: F32 = (found.logits[0] if "logits" in found else found.last_hidden_state[0].mean(0)).numpy()
    return out


def relative_error(found: F32, expected: F32) -> float:
    """The largest difference at any position and token, relative to the spread of the expected values."""
    spread = expected.std() if expected.size > 1 else np.abs(expected).max()
    return float(np.abs(found - expected).max() / spread)


def rms_error(found: F32, expected: F32) -> float:
    """The root mean square of the differences, relative to the spread of the expected values."""
    return float(np.sqrt(np.square(found - expected).mean()) / expected.std())


# --- MLX-quantized folders -------------------------------------------------------------------------------------------


def quantize_mlx(source: Path, target: Path, *, bits: int, group: int) -> Path:
    """`source` through mlx_lm.convert: affine, as the published MLX repositories are made."""
    import mlx_lm

    mlx_lm.convert(str(source), str(target), quantize=True, q_bits=bits, q_group_size=group)
    return target
