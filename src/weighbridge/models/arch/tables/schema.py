"""The schema of family tables: sections and fields of shipped tables, mixins and user tables (`--arch-file`).

There is one struct per kind of entry; unknown fields are errors that name the place and the nearest known word. The
reference page docs/family-schema.md is generated from these structs and the descriptions of their fields. The short
forms that a TOML may use are expanded before (short_forms.py).

To add a section, write a struct, give `FamilyTable` a field of it with a description, and read it where it is used as
`family.document.FIELD`. A table that is `like` another inherits the section; one with `names_from` inherits the
sections in `documents._NAMES`. Fields are checked by type; words that must exist elsewhere in the table (dialects,
sizes, sets) are checked in `check.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field


def _doc(text: str) -> Meta:
    return Meta(description=text)


Words = list[str]
Split = Literal[
    "whole", "column heads", "column kv_heads", "column qkv", "column width", "column vocabulary",
    "column state_heads", "column key_heads", "row heads", "row width", "row state_heads",
]  # fmt: skip
ByKey = dict[str, Any]
RoleClass = Literal[
    "linear", "norm", "bias", "expert", "embedding", "head", "router", "state", "factors", "conv", "position", "types",
    "sinks", "tokens", "integers",
]  # fmt: skip


class ArchitectureEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[architecture]`: one class of transformers, by name. The last class of a `model_type` is the plain one."""

    model_type: Annotated[str, _doc("`model_type` in config.json")] = ""
    shared_type: Annotated[
        str, _doc("instead, `model_type` of another family's class, which is meant if a config doesn't name the class")
    ] = ""
    aliases: Annotated[Words, _doc("other names of the class")] = []
    prefix: Annotated[
        str | None, _doc("prefix of its tensor names, one of the `hf` dialect's `prefixes`; default: the first")
    ] = None
    gguf: Annotated[
        Words | None,
        _doc(
            "conditions on a GGUF's keys and tensors, any of which identifies the class; `[]`: any GGUF; absent: none"
        ),
    ] = None
    defaults: Annotated[ByKey, _doc("defaults of this class, over those of the family")] = {}
    null: Annotated[dict[str, str], _doc("expressions for keys that are null or absent")] = {}
    like: Annotated[Words, _doc("classes with the same GGUFs")] = []
    full_layers: Annotated[
        Words, _doc("`layers[a::b]` over keys: layers with full attention if a config has no `layer_types`")
    ] = []
    part: Annotated[str | None, _doc("object in config.json that describes this model, such as `text_config`")] = None
    outside: Annotated[Words, _doc("keys of config.json that are next to that object")] = []
    part_type: Annotated[
        str | None, _doc("default `model_type` of that object; the family must have a class of this type")
    ] = None
    part_aliases: Annotated[Words, _doc("other `model_type`s of that object")] = []
    part_types: Annotated[
        Words, _doc('`model_type`s of that object in models of this family, `""` if it has none; default: any')
    ] = []
    requires: Annotated[str | None, _doc("set of layers that may not be empty in a model of this family")] = None
    forbids: Annotated[str | None, _doc("set of layers that must be empty")] = None
    dialect: Annotated[str, _doc("dialect in which a folder of the class is made of a GGUF")] = "hf"
    known_as: Annotated[
        str | None, _doc("`model_type` that rules use; default: that of the class in `like`, or its own")
    ] = None


class WrapperEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A section of `wrappers.toml`: a class of several parts, one of which is a model of a family."""

    model_type: Annotated[str, _doc("`model_type` in config.json")]
    prefixes: Annotated[Words, _doc("prefixes that replace `model.` in the part's names; the first is the usual one")]
    part_type: Annotated[str, _doc("default `model_type` of the part")]
    aliases: Annotated[Words, _doc("other names of the class")] = []
    part: Annotated[str, _doc("object in config.json that describes the part")] = "text_config"
    part_aliases: Annotated[Words, _doc("other `model_type`s of the part")] = []
    apart: Annotated[Words, _doc("prefixes of the names of other parts")] = []


class DialectEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[dialect]`: one convention of tensor names (hf, gguf, mlx, canonical ...)."""

    base: Annotated[str | None, _doc("dialect whose names are used where this one has none")] = None
    replace: Annotated[
        dict[str, str],
        _doc("text replaced in all names; `{m}` stands for the prefix, `{o}` for the part before its `model.`"),
    ] = {}
    prefixes: Annotated[Words, _doc("values of `{m}`; the first is the usual one")] = field(
        default_factory=lambda: [""]
    )
    order: Annotated[
        Literal["table", "source"], _doc("order of tensors: layer by layer, or as the reference converter writes them")
    ] = "table"
    write_groups: Annotated[list[Words], _doc("roles that are written one after another")] = []
    write_first: Annotated[Words, _doc("roles of a source in this dialect that are written before all others")] = []
    write_by_layer: Annotated[list[Words], _doc("groups of roles that are written first, by layer")] = []
    write_last: Annotated[Words, _doc("roles that are written after all others")] = []
    write_packed_first: Annotated[
        bool, _doc("packed `write_groups` are written first, by layer, and determine the file's type")
    ] = False
    block_dtype: Annotated[str | None, _doc("block type whose codes these names hold unchanged")] = None
    f32: Annotated[Words, _doc("parts of the names of further matrices that are always F32")] = []
    kept_dtypes: Annotated[dict[str, str], _doc("types that are kept, and the type that each is written as")] = {}
    without: Annotated[Words | None, _doc("sets of layers that it doesn't hold")] = None
    mtp_prefixes: Annotated[
        dict[str, str], _doc("prefixes, and their replacements in the optional layers; `{n}` numbers these from 0")
    ] = {}
    set_prefixes: Annotated[
        dict[str, dict[str, str]],
        _doc("prefixes by set of layers, and their replacements there; `{n}` numbers the set's layers from 0"),
    ] = {}
    mtp_count: Annotated[
        str | None, _doc("key of config.json that counts the optional layers; the tensors override it")
    ] = None
    mtp_dialect: Annotated[str | None, _doc("dialect whose names the optional layers have")] = None


class SizeEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[size]`: a symbol and its sources; the first expression whose keys are present counts."""

    hf: Annotated[Words, _doc("expressions over keys of config.json")] = []
    gguf: Annotated[Words, _doc("expressions over keys of a GGUF, without the architecture's name")] = []
    optional: Annotated[bool, _doc("may be absent or 0; roles with the symbol then don't exist")] = False
    by_layer: Annotated[
        bool, _doc("a list with the size of each layer; in layers with 0, roles with the symbol don't exist")
    ] = False
    index: Annotated[str, _doc("index whose values the list is by, if that isn't the layer's")] = ""


class LayerSetEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[layers]`: a set of layers and its sources; the first expression whose keys are present counts. Expressions may
    use the sets above."""

    hf: Annotated[Words, _doc("expressions over keys of config.json")]
    gguf: Annotated[Words, _doc("expressions over keys of a GGUF")]
    optional: Annotated[bool, _doc("all tensors of these layers may be absent; lists by layer end before them")] = False
    include: Annotated[str, _doc("another set whose layers it includes")] = ""
    index: Annotated[str, _doc("index whose values it has, if that isn't the first, the layer's")] = ""
    order: Annotated[
        dict[str, str],
        _doc("by `hf` and `gguf`: key of a list by layer, by which `set_prefixes` number its layers; default: rising"),
    ] = {}


class RoleEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[role]`: one logical tensor, or one for each value of the indices in its names."""

    kind: Annotated[RoleClass, _doc("class of tensors, for rules of types")]
    shape: Annotated[str, _doc("dimensions, as expressions of sizes: `H*D, N`")]
    names: Annotated[dict[str, str], _doc("name in each dialect; `''`: not in this dialect, though in its base")] = {}
    layout: Annotated[dict[str, str], _doc("layout change from the role's own layout to a dialect's")] = {}
    bias: Annotated[bool | str, _doc("adds a role NAME_bias, in this group if it is a text")] = False
    clips: Annotated[
        str, _doc("adds the scalars NAME_in_min, NAME_in_max, NAME_out_min and NAME_out_max, in this group")
    ] = ""
    after: Annotated[str | None, _doc("role that it follows in the order of tensors; default: the last one")] = None
    when: Annotated[str | None, _doc("condition on the sizes that are known: `E`, `not E`")] = None
    layers: Annotated[str | None, _doc("set of layers that have it, or `layers[K:]` of sizes")] = None
    group: Annotated[str | None, _doc("group whose tensors are all present or all absent")] = None
    tied: Annotated[str | None, _doc("role that replaces it if it is absent")] = None
    derived: Annotated[str | None, _doc("function that computes it from the config; it is not a weight")] = None
    computed: Annotated[
        str,
        _doc(
            "function that computes it from roles that only a folder has, `NAME(role, ...)`; no folder can be made of "
            "it again"
        ),
    ] = ""
    shapes: Annotated[dict[str, str], _doc("shape in a dialect that has another one; `''`: a scalar")] = {}
    stacked: Annotated[Words, _doc("indices that no dialect's name has")] = []
    unstacked: Annotated[Words, _doc("dialects whose tensor has no separate axis for the indices")] = []
    zeros: Annotated[Words, _doc("dialects that hold zeros if it is absent")] = []
    copies: Annotated[str | None, _doc("role of the same layer that it repeats; nothing computes with it")] = None
    token: Annotated[
        str | None, _doc("text of a token: a projector's copy of its row in the language model's embedding")
    ] = None
    batch_norm: Annotated[
        bool, _doc("a projector's norm whose `running_mean` and `running_var` a GGUF has folded into weight and bias")
    ] = False
    gguf_dtype: Annotated[
        Literal["", "F16", "F32", "F16 or F32"],
        _doc("type in a GGUF whatever is requested; `F16 or F32`: F16 if that is requested, else F32"),
    ] = ""
    written_with: Annotated[
        str | None, _doc("role of the same layer that the reference converter writes a derived one with")
    ] = None
    as_metadata: Annotated[
        Words, _doc("dialects that hold it in a key of this name: one number per index, or the integers of a list")
    ] = []


class FuseEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[fuse.DIALECT]`: one tensor that holds several roles."""

    roles: Annotated[Words, _doc("roles, joined in this order on their first axis")]
    name: Annotated[str, _doc("name of the tensor")]
    interleave: Annotated[str | None, _doc("size: the number of groups, each with its share of every role")] = None
    layout: Annotated[Words, _doc("layout changes of the joined tensor, one after another")] = []
    shape: Annotated[str, _doc("dimensions of the tensor, if they aren't those of the joined roles")] = ""
    by_rank: Annotated[bool, _doc("packed files have its rows rank by rank: refused")] = False


class KeyEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`meta.key`, `meta.tokenizer`: a GGUF key-value and its source in a config."""

    name: Annotated[str, _doc("name of the key; `{a}` is the architecture's")]
    type: Annotated[
        Literal[
            "u32", "i32", "f32", "bool", "str", "arr[bool]", "arr[u32]", "arr[u64]", "arr[i32]", "arr[f32]", "arr[str]"
        ],
        _doc("type of the value in the GGUF"),
    ]
    config: Annotated[Words, _doc("expressions over the effective config; the first that is set counts")] = []
    value: Annotated[Any, _doc("constant value")] = None
    map: Annotated[ByKey, _doc("values in the config, and the value in the GGUF for each")] = {}
    when: Annotated[dict[str, list[Any]], _doc("values that keys must have; `*`: any, `+`: any but 0")] = {}
    restore: Annotated[
        bool | str | Words, _doc("keys of config.json restored from it; `false`: none; default: the first of `config`")
    ] = True
    absent: Annotated[Any, _doc("value that is written if the config has none")] = None
    null: Annotated[bool, _doc("a GGUF without the key means null")] = False
    default: Annotated[Any, _doc("value of a GGUF without the key")] = None
    omit_if: Annotated[Any, _doc("value that isn't written, since llama.cpp assumes it")] = None
    times: Annotated[float, _doc("factor from config to GGUF")] = 1.0
    subtract: Annotated[str, _doc("expression that is subtracted")] = ""
    divide_by: Annotated[str, _doc("key that the number is divided by, and that is restored")] = ""
    divide_by_sqrt: Annotated[str, _doc("key by whose square root the number is divided")] = ""
    whole: Annotated[bool, _doc("restored as an integer, though the GGUF has f32")] = False
    quantile: Annotated[bool, _doc("list of shares, written as quantiles of the standard normal distribution")] = False
    pad_to: Annotated[int, _doc("length to which a list is padded with zeros")] = 0
    layers: Annotated[
        str | None, _doc("list by layer: the value in this set, 0 elsewhere; without `config`: flags of the set")
    ] = None
    others: Annotated[str, _doc("expression for the other layers")] = ""
    gaps: Annotated[bool, _doc("a GGUF may have 0 for layers without it, though the family writes one number")] = False
    sets: Annotated[ByKey, _doc("further settings of a config implied by a GGUF with this list")] = {}
    token: Annotated[str | None, _doc("text of the token whose id it is")] = None
    each: Annotated[bool, _doc("one key for each entry of an object, `NAME.ENTRY`")] = False
    first: Annotated[bool, _doc("written before the general keys, or before the tokenizer's")] = False
    leading: Annotated[bool, _doc("a key of the tokenizer, written before the general keys")] = False
    last: Annotated[bool, _doc("written after all keys of the tokenizer")] = False
    replaces: Annotated[bool, _doc("replaces the shared key-value of this name")] = False
    language: Annotated[
        bool, _doc("a key of the language model's GGUF, read when a folder is made of it and a projector's")
    ] = False

    def key(self, architecture: str) -> str:
        """The name in a GGUF of this `general.architecture`."""
        return self.name.replace("{a}", architecture)

    @property
    def restored(self) -> list[str]:
        """The keys of config.json that are restored from it."""
        if isinstance(self.restore, bool):
            return self.config[:1] if self.restore else []
        return [self.restore] if isinstance(self.restore, str) else self.restore


class ImpliedEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`meta.implied`: a value that every GGUF of the family implies."""

    config: Annotated[str, _doc("key of config.json")]
    value: Annotated[str | bool, _doc("expression, or flag")]
    when: Annotated[dict[str, list[Any]], _doc("values that keys must have")] = {}


class RequiredValueEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`requires_value` of `[meta]` and `[mlx]`: a value without which the graph, or class, computes something else."""

    config: Annotated[str, _doc("key of the effective config")]
    why: Annotated[str, _doc("effect of another value in the graph or class")]
    only: Annotated[list[Any], _doc("values with which the result is right")] = []
    equals: Annotated[str, _doc("key that must have the same value")] = ""
    at_least: Annotated[str, _doc("key whose value it must reach, if that is set")] = ""
    nonzero: Annotated[bool, _doc("any value but 0 and null")] = False
    when: Annotated[dict[str, list[Any]], _doc("values of other keys for which it matters")] = {}


class PresenceEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`meta.presence`: values of a key that depend on whether a GGUF has a tensor."""

    tensor: Annotated[str, _doc("name of the tensor")]
    there: Annotated[Any, _doc("value if the GGUF has it")]
    absent: Annotated[Any, _doc("value if it doesn't")]


class RerankEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[meta.rerank]`: a model that ranks by the output's rows for some tokens, with the config of a plain model."""

    names: Annotated[Words, _doc("lower-case texts in the folder's name or its README's heading")]
    labels: Annotated[Words, _doc("tokens whose rows rank, in order")]
    template: Annotated[str, _doc("text of the chat template that is added")]


class DenseEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[meta.dense]`: matrices that sentence-transformers applies to embeddings, each in a folder of its own."""

    roles: Annotated[Words, _doc("their roles; the name in `hf` begins with the module's folder")]
    keys: Annotated[
        Literal["widths", "length"], _doc("the GGUF's keys: widths of each matrix, or the length of an embedding")
    ]
    included: Annotated[bool, _doc("written unless the user leaves them out")] = False


class MetaEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[meta]`: how the family's configs map to key-values of its GGUFs."""

    base: Annotated[bool, _doc("includes the shared key-values (`base` in key_values.toml)")] = True
    without: Annotated[Words, _doc("shared key-values, or with `like` the other family's, that it doesn't have")] = []
    key: Annotated[list[KeyEntry], _doc("further key-values, in order; a text is a short form")] = []
    tokenizer: Annotated[list[KeyEntry], _doc("key-values that follow the tokenizer's own, or replace them")] = []
    tokens: Annotated[dict[str, str] | None, _doc("keys of config.json that repeat keys of the tokenizer")] = None
    presence: Annotated[
        dict[str, str | PresenceEntry], _doc("flags that a GGUF sets by having a tensor (`!`: by not having it)")
    ] = {}
    rows: Annotated[
        dict[str, str], _doc("keys of config.json that are the first dimension of a GGUF's tensor; `#NAME`: the second")
    ] = {}
    assumed: Annotated[
        dict[str, list[Any]], _doc("values that llama.cpp assumes for keys that a GGUF can't hold; others are losses")
    ] = {}
    implied: Annotated[list[ImpliedEntry], _doc("values that follow from others")] = []
    requires_value: Annotated[list[RequiredValueEntry], _doc("values that llama.cpp's graph needs")] = []
    rerank: Annotated[RerankEntry | None, _doc("how a model of the family ranks")] = None
    dense: Annotated[DenseEntry | None, _doc("matrices behind the pooling")] = None


class MlxEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[mlx]`: how mlx-lm treats models of the family."""

    eight_bits: Annotated[
        Words, _doc("modules quantized to 8 bits in groups of 64, by the ends of their paths; `=`: whole path")
    ] = []
    unquantized: Annotated[Words, _doc("modules that mlx-lm doesn't quantize, by the ends of their paths")] = []
    floats: Annotated[Words, _doc("roles that mlx_lm.convert doesn't quantize, though mlx-lm could")] = []
    assumed: Annotated[dict[str, Any], _doc("keys that mlx-lm's class requires, and their values by default")] = {}
    model_type: Annotated[dict[str, str], _doc("`model_type` of a config, and mlx-lm's name for it")] = {}
    part_of: Annotated[
        dict[str, str], _doc("`model_type`, and that of the whole model whose config mlx-lm expects around this one")
    ] = {}
    config: Annotated[dict[str, str], _doc("keys that mlx-lm needs, and the key of the effective config for each")] = {}
    layers: Annotated[
        dict[str, str], _doc("keys that mlx-lm needs with a 0 or 1 per layer, and the set of layers with a 1")
    ] = {}
    period: Annotated[
        dict[str, int], _doc("keys for the period of full attention in layers, and mlx-lm's default for each")
    ] = {}
    uncast: Annotated[Words, _doc("further tensors that keep their type, by the ends of their names")] = []
    refused: Annotated[Words, _doc("keys that mlx-lm's class doesn't read: a model that sets one is refused")] = []
    requires_value: Annotated[list[RequiredValueEntry], _doc("values that mlx-lm's class needs")] = []
    unsupported: Annotated[str, _doc("why the family has no names in mlx-lm")] = ""


class LayerRulesEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[layer_rules]`: the layers of another kind if no list states them; for `wb slice`."""

    every: Annotated[
        dict[str, int], _doc("keys by which every n-th layer is of another kind, and the class's default of n")
    ] = {}
    kind: Annotated[str, _doc("`layer_types` of every n-th layer, if it isn't `full_attention`")] = ""
    last: Annotated[str, _doc("`layer_types` of the last layer, regardless of the config")] = ""
    graph_every: Annotated[int, _doc("n if every n-th layer of llama.cpp's graph has no sliding window")] = 1
    graph_first: Annotated[bool, _doc("whether that is the first of n layers, not the last")] = False
    graph_unrotated: Annotated[int, _doc("n if llama.cpp's graph doesn't rotate every n-th layer")] = 1


class DraftEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[draft]`: a draft model; its tokenizer and some settings are its target's, `target` in its effective config."""

    width: Annotated[str, _doc("key of the effective config that must equal the target's `hidden_size`")]
    tokenizer: Annotated[Literal["own", "target"], _doc("family whose rules read the target's tokenizer")] = "target"


class InnerDraftEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[inner_draft]`: a draft model inside a folder of the family, its target."""

    prefix: Annotated[str, _doc("prefix of its tensors' names; a number of its blocks follows")]
    architecture: Annotated[str, _doc("its class")]
    keys: Annotated[Words, _doc("keys of config.json that it needs; only folders with it have the first")]


class OverruledEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[overruled]`: a key of config.json whose value transformers replaces; `wb prove` restores it before it runs."""

    value: Annotated[Any, _doc("value that the class always uses")]
    why: Annotated[str, _doc("effect of that value")]


class VocabularySizeEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`tokenizer.size`: settings implied by a vocabulary of this size."""

    special: Annotated[dict[str, int], _doc("ids of special tokens by role")] = {}
    add: Annotated[dict[str, bool], _doc("whether the token of a role is added to every text")] = {}


class TokenizerEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[tokenizer]`: treatment of tokenizers by the reference converter that is specific to the family's classes."""

    absent: Annotated[bool, _doc("the classes have no tokenizer: a vocoder's tokens are codes")] = False
    codes: Annotated[
        str, _doc("key of the effective config with names of codes: tokens after those of the tokenizer, no template")
    ] = ""
    rank_file: Annotated[str, _doc("file of tiktoken ranks whose name other models use for another format")] = ""
    add_prefix_space: Annotated[
        Literal["", "first", "tokens", "last"],
        _doc("position of tokenizer_config.json's `add_prefix_space`: before or after the tokens, or at the end"),
    ] = ""
    size: Annotated[dict[str, VocabularySizeEntry], _doc("rules by `vocab_size`")] = {}
    char_bpe: Annotated[bool, _doc("BPE over characters keeps its merges")] = False
    visible: Annotated[Words, _doc("control tokens that become user-defined")] = []
    control: Annotated[Words, _doc("added tokens of byte-level BPE that become control tokens")] = []
    raw_pre: Annotated[
        dict[str, str],
        _doc("pre-tokenizer name of BPE over characters, by the type of tokenizer.json's pre-tokenizer, or `other`"),
    ] = {}
    token_types: Annotated[bool, _doc("writes `type_vocab_size` for any tokenizer")] = False
    added_scores: Annotated[
        bool, _doc("added tokens in place of SentencePiece pieces score 0 if special, else -10000; unknown stays one")
    ] = False
    redefine: Annotated[
        bool,
        _doc("added tokens of tokenizer.json replace SentencePiece pieces, and only `special` makes a control token"),
    ] = False
    piece_types: Annotated[dict[str, int], _doc("types of SentencePiece pieces by the start of their text")] = {}
    piece_texts: Annotated[dict[str, str], _doc("SentencePiece pieces that are written as another text")] = {}
    special_is_control: Annotated[bool, _doc("byte fallback: `special` makes an added token a control token")] = False
    eot: Annotated[str, _doc("text of the token that ends a turn (PLaMo)")] = ""
    normal: Annotated[Words, _doc("tokens that are normal regardless of the file (PLaMo)")] = []
    tokenizer_eos: Annotated[bool, _doc("takes eos from tokenizer_config.json, not from config.json")] = False


class FamilyTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole table."""

    name: Annotated[str, _doc("name of the family; shipped tables are named after their files")]
    gguf: Annotated[str, _doc("`general.architecture` of its GGUFs; default: that of `like`, or the name")]
    like: Annotated[
        str | None, _doc("family whose table it inherits except the classes: names, defaults, key-values, rules")
    ] = None
    names_from: Annotated[str | None, _doc("family of which it inherits only names, sizes and layers")] = None
    exclude: Annotated[
        Words, _doc("inherited entries to leave out: `role.q.layout`, `role.*_bias`, `role.q_norm k_norm`")
    ] = []
    include: Annotated[Words, _doc("mixins that it begins with")] = []
    ignored_prefixes: Annotated[Words, _doc("prefixes of tensors of other parts of a model")] = []
    companions: Annotated[
        dict[str, Literal["table", "source"]],
        _doc(
            "folders next to a projector's weights, whose tensors are named `FOLDER.NAME`, and whose config.json is "
            "the object `FOLDER`; the order of the tensors: the table's, or as stored"
        ),
    ] = {}
    encoder: Annotated[str, _doc("prefix of an encoder without which llama.cpp loads no mmproj file of the class")] = ""
    defaults: Annotated[ByKey, _doc("values of absent keys; a table, or a list of tables and names in usual.toml")] = {}
    config_rules: Annotated[
        Words,
        _doc(
            "rules that complete a config: `uniform(KEYS)`, `last_layer(KEY)`, `leading_dense`, or the rule of one "
            "family by its name (see Config rules)"
        ),
    ] = []
    architecture: dict[str, ArchitectureEntry] = {}
    wrappers: Annotated[Words, _doc("classes of `wrappers.toml` that may contain a model of the family")] = []
    dialect: dict[str, DialectEntry] = {}
    size: dict[str, SizeEntry] = {}
    index: Annotated[
        dict[str, str], _doc("indices of names, and the size that each runs to; the first is the layer's")
    ] = {}
    layers: dict[str, LayerSetEntry] = {}
    role: dict[str, RoleEntry] = {}
    fuse: dict[str, dict[str, FuseEntry]] = {}
    drop: Annotated[dict[str, Words], _doc("names of a dialect that are ignored")] = {}
    meta: MetaEntry | None = None
    tensor_parallel: Annotated[
        dict[str, Split],
        _doc("how ranks split a role: by outputs (`column`), by inputs (`row`), or not; see mixins/common.toml"),
    ] = {}
    layer_rules: LayerRulesEntry = LayerRulesEntry()
    draft: DraftEntry | None = None
    inner_draft: InnerDraftEntry | None = None
    overruled: Annotated[dict[str, OverruledEntry], _doc("keys of config.json that transformers overrules")] = {}
    mlx: MlxEntry = MlxEntry()
    tokenizer: TokenizerEntry | None = None

    @property
    def parent(self) -> str | None:
        """The family that it inherits from."""
        return self.like or self.names_from


#: The structs of all sections, in the order of the reference page.
SECTIONS: Final = tuple(kind for name, kind in list(globals().items()) if name.endswith("Entry"))
