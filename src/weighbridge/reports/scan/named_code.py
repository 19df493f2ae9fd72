"""Where configs name code: which file, which place in its JSON, which loader imports it.

Each row was read in the loader's source: what stands there is imported, or a file of that name is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

Test = Callable[[Any], str | None]


class NamedCode(NamedTuple):
    """In files that match `file`, the value at `path` (`*`: any key or index, `**`: any depth) names code where
    `name` returns it."""

    file: str
    path: tuple[str | int, ...]
    rule: str
    loader: str
    name: Test


# Modules of diffusers.pipelines that a model_index.json names besides the libraries themselves.
_PIPELINES: Final = frozenset("".join((
    "allegro alt_diffusion amused animatediff audio_diffusion audioldm audioldm2 aura_flow blip_diffusion ",
    "bria chroma cogvideo cogview3 cogview4 consisid consistency_models controlnet cosmos dance_diffusion ",
    "ddim ddpm deepfloyd_if diffusers dit easyanimate flax flux framepack hidream_image hunyuan_video ",
    "hunyuandit i2vgen_xl kandinsky kandinsky2_2 kandinsky3 kolors latent_diffusion ",
    "latent_diffusion_uncond latte ledits_pp ltx lumina lumina2 marigold mochi musicldm omnigen ",
    "onnxruntime optimum pag paint_by_example pixart_alpha pndm qwenimage repaint sana score_sde_ve ",
    "semantic_stable_diffusion shap_e skyreels_v2 spectrogram_diffusion stable_audio stable_cascade ",
    "stable_diffusion stable_diffusion_3 stable_diffusion_gligen stable_diffusion_safe ",
    "stable_diffusion_xl stable_video_diffusion stochastic_karras_ve t2i_adapter text_to_video_synthesis ",
    "transformers unclip unidiffuser versatile_diffusion visualcloze vq_diffusion wan wuerstchen ",
)).split())  # fmt: skip
_DOTTED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_LIBRARIES: Final = ("transformers", "diffusers", "torch", "timm", "sentence_transformers", "open_clip")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _unless(*known: str) -> Test:
    """A module that is none of these packages."""

    def name(value: Any) -> str | None:
        text = _text(value)
        return None if text is None or text.partition(".")[0] in known else text

    return name


def _class(*known: str) -> Test:
    """`module.Class` of a module that is of none of these packages."""
    unless = _unless(*known)
    return lambda value: unless(value) if isinstance(value, str) and _DOTTED.fullmatch(value) else None


def _component(value: Any) -> str | None:
    """A component of a pipeline: [module, class]."""
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        return None
    return None if value[0] in _PIPELINES else f"{value[0]}.{value[1]}"


def _own_pipeline(value: Any) -> str | None:
    return f"{value[0]}.{value[-1]}" if isinstance(value, list) and value else None


def _repository(value: Any) -> str | None:
    """`owner/kernel`: a kernel of the Hub, whose code is fetched and run."""
    text = _text(value)
    return text if text and "/" in text else None


def _path(value: Any) -> str | None:
    """A file that a layer reads its vocabulary from."""
    return value if isinstance(value, str) and ("/" in value or "\\" in value or "." in value) else None


# Of a model's config, or of a part's (text_config): a name, or one for each part.
_KERNELS: Final = (
    "attn_implementation", "_attn_implementation", "_attn_implementation_internal", "experts_implementation",
)  # fmt: skip
_TRUST: Final = "imports it when the model is loaded"
TABLE: Final = (
    NamedCode("config.json", ("model_file",), "config/own-code", f"mlx_lm {_TRUST}", _text),
    NamedCode("modules.json", ("*", "type"), "config/named-class", f"sentence-transformers {_TRUST}",
              _unless("sentence_transformers")),
    NamedCode("config_sentence_transformers.json", ("model_type",), "config/named-class",
              f"sentence-transformers {_TRUST}", lambda v: v if isinstance(v, str) and "." in v else None),
    *(NamedCode(file, ("types", "*"), "config/named-class", f"sentence-transformers {_TRUST}",
                _class("sentence_transformers")) for file in ("router_config.json", "config.json")),
    *(NamedCode("config.json", path, "config/named-class", f"sentence-transformers {_TRUST}",
                _class("sentence_transformers", "torch", "transformers"))
      for path in (("sbert_ce_default_activation_function",), ("sentence_transformers", "activation_fn"),
                   ("activation_function",))),
    NamedCode("config.json", ("**", "type"), "config/named-class", f"AllenNLP {_TRUST}",
              _class("allennlp", *_LIBRARIES)),
    NamedCode("model_index.json", ("_class_name",), "config/own-code", f"diffusers {_TRUST}", _own_pipeline),
    NamedCode("model_index.json", ("*",), "config/named-class", f"diffusers {_TRUST}", _component),
    NamedCode("adapter_config.json", ("auto_mapping", "parent_library"), "config/named-class", f"peft {_TRUST}",
              _unless(*_LIBRARIES)),
    NamedCode("adapter_config.json", ("megatron_core",), "config/named-class", f"peft {_TRUST}", _unless("megatron")),
    NamedCode("configuration.json", ("plugins", "*"), "config/named-class", f"ModelScope {_TRUST}", _text),
    NamedCode("configuration.json", ("allow_remote",), "config/trust", "ModelScope runs code of the repository",
              lambda v: "allow_remote" if v is True else None),
    *(NamedCode("config.json", path, "config/remote-code", "transformers fetches the kernel and runs it", _repository)
      for key in _KERNELS for path in ((key,), (key, "*"), ("*", key), ("*", key, "*"))),
    NamedCode("schema.json", ("**", "__module__"), "config/named-class", f"skops {_TRUST}",
              _unless("sklearn", "numpy", "scipy", "builtins", "collections")),
)  # fmt: skip


def named(file: str, value: Any) -> Iterator[tuple[NamedCode, str]]:
    """The rows that apply to a file's JSON, each with the name."""
    for row in TABLE:
        if fnmatchcase(file, row.file):
            for found in _at(value, row.path):
                name = row.name(found)
                if name is not None:
                    yield row, name


def _at(value: Any, path: tuple[str | int, ...]) -> Iterator[Any]:
    if not path:
        yield value
        return
    step, rest = path[0], path[1:]
    if step == "**":
        for one in _below(value):
            yield from _at(one, rest)
        return
    if isinstance(value, dict):
        inner = [v for k, v in value.items() if step in ("*", k)]
    else:
        inner = value if isinstance(value, list) and step == "*" else []
    for one in inner:
        yield from _at(one, rest)


def _below(value: Any) -> Iterator[Any]:
    """The value and all objects and lists in it."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict | list):
            yield node
            stack += node.values() if isinstance(node, dict) else node
