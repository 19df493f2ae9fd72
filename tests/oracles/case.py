"""What a small model of the proofs is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.oracles import vocabularies

ENCODERS = (
    "BertConfig",
    "DistilBertConfig",
    "RobertaConfig",
    "XLMRobertaConfig",
    "CamembertConfig",
    "NomicBertConfig",
    "NomicBertModel",
    "XLMRobertaModel",
    "JinaBertModel",
    "ModernBertConfig",
    "Lfm2BidirectionalModel",
    "Lfm2Model",
    "EuroBertModel",
    "LlamaBidirectionalModel",
)


# classes that a case names and that are no head on another
_BARE = (
    "T5ForConditionalGeneration",
    "MT5ForConditionalGeneration",
    "UMT5ForConditionalGeneration",
    "T5EncoderModel",
    "UMT5EncoderModel",
    "Gemma3TextModel",
    "EmbeddingGemma2Model",
)


@dataclass(frozen=True)
class Case:
    """One model: its transformers config class, what differs from the defaults, and its tokenizer.

    Where transformers has no class, since the model's own code came with its weights, `config` is the name of the class
    in that code, `shapes` are the tensors as they are published, `defaults` those of that code's config; what the model
    computes is asked of its twin (twins.py).
    """

    name: str
    config: str
    tokenizer: str
    options: dict[str, Any] = field(default_factory=dict)
    save: dict[str, Any] = field(default_factory=dict)  # arguments of save_pretrained
    v4: bool = False  # config.json as transformers 4 spelled it: rope_theta and rope_scaling for rope_parameters

    @property
    def pre(self) -> str | None:
        return vocabularies.PRE[self.tokenizer]

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    # tensors that the published files hold beside those of transformers' class, which leaves them unread
    further: dict[str, tuple[int, ...]] = field(default_factory=dict)
    filled: tuple[str, ...] = ()  # dialects that have zeros for these where they are absent
    whole_mlx: str = ""  # the case under whose names MLX has it
    judged: bool = True  # whether the reference converts its tokenizer
    said: dict[str, Any] = field(default_factory=dict)  # what config.json says beside
    # what the reference asks of a config and transformers 5 keeps no more: given to it, else it converts none of these
    hparams: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)  # what generation_config.json says, where it has one
    flags: tuple[str, ...] = ()  # options that the reference converter is given
    ours: dict[str, Any] = field(
        default_factory=dict
    )  # keys that the reference gets wrong (docs/reference-differences.md)
    named: dict[str, str] = field(default_factory=dict)  # ... or gives a wrong name: its name, ours
    # what published configs say in words that transformers doesn't have, and what their silence means
    words: dict[str, Any] = field(default_factory=dict)
    added: dict[str, Any] = field(default_factory=dict)  # keys that the reference leaves out (the same page)
    settings: dict[str, Any] = field(default_factory=dict)  # under which transformers computes what llama.cpp does
    runs: bool = True  # whether llama.cpp runs it
    tolerance: float | None = None  # of llama.cpp's logits, where its graph rounds to f16 (latent attention)
    # what parameters are drawn from, over the usual: a sigmoid in front of the experts must not saturate
    spreads: tuple[tuple[tuple[str, ...], tuple[float, float]], ...] = ()
    gelu: bool = False  # ggml takes GELU from a table in f16
    recorded: tuple[str, ...] = ()  # what golden/families.json has of it beside "hf" and "gguf": "hf5", "mlx"
    vocabulary: dict[str, Any] = field(default_factory=dict)  # keys of its tokenizer that tell its class
    prefixed: str = ""  # what stands before every name in a checkpoint of it with a head
    head: str | None = None  # the class with a head that is built; a GGUF holds that of a classifier alone
    beyond: tuple[str, ...] = ()  # tensors that the reference can't convert: it gets the model without
    unheld: frozenset[str] = frozenset()  # settings that a GGUF doesn't hold and that change no number here
    folded: bool = False  # whether its GGUF has multipliers of the config in the weights, and so its way back
    # tensors of a GGUF whose rows the reference puts in an order that llama.cpp's graph doesn't have: the Hugging Face
    # tensor, and its heads, of which one half is interleaved
    reordered: dict[str, tuple[str, int]] = field(default_factory=dict)
    computed: tuple[str, ...] = ()  # tensors of a GGUF that are computed from several, so that none leads back
    # tensors that the reference leaves out or calls otherwise: whose numbers (of which Hugging Face name) they are
    kept: dict[str, str] = field(default_factory=dict)
    told: tuple[str, ...] = ()  # how what a plan tells of llama.cpp's way to compute it begins
    taken: str = ""  # the class that its GGUF is taken for, which computes the same (its model_type)
    guesses: tuple[str, ...] = ()  # what a GGUF of it leaves to be guessed
    golden: bool = True  # whether others' tensors of it are recorded; else it is there for the proofs alone
    products: tuple[tuple[str, str], ...] = ()  # how names of pairs end of which a GGUF has the product
    tails: dict[str, int] = field(default_factory=dict)  # how many elements count of what ends so; zeros follow
    unit: bool = False  # whether a GGUF has the rows of its output at length 1
    ternary: bool = False  # whether a GGUF has the matrices of its layers rounded to three values
    zero_mean: tuple[str, ...] = ()  # how names of vectors end from which a GGUF has their mean subtracted
    twin: bool = False  # the reference converts none of its class: it is asked for the model of twins.STAND_INS
    mtp: bool = False  # a layer that predicts further tokens behind the others
    # what packs its folder as it is published: experts in MXFP4 and the rest in bfloat16, and whatever else
    packed: Callable[[Path], None] | None = None
    finish: Callable[[Path], None] | None = None  # what else is done to its folder
    by_rank: tuple[str, ...] = ()  # tensors whose packed forms have their rows rank by rank, and are refused
    returns: bool = True  # whether a GGUF of its folder gives that back, byte for byte
    beside: tuple[str, ...] = ()  # names of other parts of the model in published files
    part_type: str = ""  # `model_type` of the part that writes where its config hasn't that of its class
    apart: tuple[str, ...] = ()  # how names of other parts among its own tensors begin
    foreign: tuple[str, ...] = ()  # names that files of the families that its table begins with hold, and its own don't
    alone: tuple[str, ...] = ()  # tensors of which each may be absent
    turned: tuple[str, ...] = ()  # how names end whose rows a GGUF has in another order, and a folder made of it, too
    unkept: tuple[str, ...] = ()  # tensors that a GGUF of it leaves out
    target: str = ""  # the case that a draft model drafts for, in whose folder its tokenizer lies
    # dialects of other releases: parts of names in their files -> those in its own
    releases: dict[str, dict[str, str]] = field(default_factory=dict)
    older: tuple[str, ...] = ()  # names that older files hold beside, of tensors that carry nothing

    @property
    def stored(self) -> str:
        """torch's name of the type that its folder is in."""
        return "bfloat16" if self.packed else "float32"

    @property
    def asked(self) -> str:
        """The type that is asked for where nothing is to be rounded: what is in codes stays so."""
        return "auto" if self.packed else "f32"

    @property
    def whole(self) -> bool:
        """Whether it goes to GGUF and back in the proofs: it has a tokenizer, no head that a GGUF doesn't hold, and
        no tensor that is computed from several."""
        two_way = self.tokenizer != "none" and not self.computed
        return (self.head is None or self.classifies or self.head in _BARE) and two_way

    @property
    def classifies(self) -> bool:
        """Whether it gives a number for each label."""
        return str(self.head).endswith("ForSequenceClassification")

    @property
    def bert(self) -> bool:
        """Whether it gives an embedding, or numbers of a classifier, and no logits."""
        return self.config in ENCODERS or self.head in (
            "T5EncoderModel",
            "UMT5EncoderModel",
            "Gemma3TextModel",
            "EmbeddingGemma2Model",
        )

    @property
    def pools(self) -> bool:
        """Whether its folder says how sentence-transformers pools."""
        return (self.config in ENCODERS and not self.classifies) or self.head in (
            "Gemma3TextModel",
            "EmbeddingGemma2Model",
        )


#: A row of a table: a case, or how to make one from those above it.
Row = Case | Callable[[dict[str, Case]], Case]


def like(other: str, name: str, more: dict[str, Any] | None = None, **changes: Any) -> Row:
    """The case `other` of the same table by another name, with further options and other fields."""

    def vary(above: dict[str, Case]) -> Case:
        model = above[other]
        return replace(model, name=name, **({"options": model.options | (more or {})} | changes))

    return vary


def table(*rows: Row) -> dict[str, Case]:
    """The cases of a module by name."""
    cases: dict[str, Case] = {}
    for row in rows:
        made = row if isinstance(row, Case) else row(cases)
        cases[made.name] = made
    return cases
