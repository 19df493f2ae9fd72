"""The schema of family tables: what a TOML may say, for shipped tables, mixins and user tables (`--arch-file`) alike.

One struct for each kind of entry; unknown fields are errors that name the place and the nearest known word. The
reference page docs/family-schema.md is generated from these structs and the descriptions of their fields.

To add a section: write a struct here, give `FamilyTable` a field of it (with a description), and read it where it is
used as `family.document.<field>`. Sections in `documents.INHERITED` pass from a table to those that are `like` it;
mixins may hold any section. A field that isn't text, a number or a flag needs no further code: it is checked by type.
Words that must exist elsewhere in the table (dialects, sizes, sets) are checked in `rows.py`.
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
    "sinks",
]  # fmt: skip


class ArchitectureEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[architecture]`: one class of transformers, by its name. The last of a `model_type` is the plain one."""

    model_type: Annotated[str, _doc("`model_type` of its config.json")]
    aliases: Annotated[Words, _doc("other names of the class")] = field(default_factory=list)
    prefix: Annotated[
        str | None, _doc("prefix of its tensors' names, one of the `hf` dialect's `prefixes`; default: the first")
    ] = None
    gguf: Annotated[
        Words | None,
        _doc("conditions on a GGUF's keys and tensors, any of which shows this class; `[]`: any GGUF; absent: none"),
    ] = None
    defaults: Annotated[ByKey, _doc("defaults of this class over those of the family")] = field(default_factory=dict)
    null: Annotated[dict[str, str], _doc("expression that stands for a key that is null or absent")] = field(
        default_factory=dict
    )
    like: Annotated[Words, _doc("classes that a GGUF doesn't tell from this one")] = field(default_factory=list)
    full_layers: Annotated[
        Words, _doc("`layers[a::b]` of keys: layers with full attention where a config has no `layer_types`")
    ] = field(default_factory=list)
    part: Annotated[str | None, _doc("object of config.json that describes this model, such as `text_config`")] = None
    part_type: Annotated[
        str | None, _doc("`model_type` of that object where it has none; only a class of this family is of the table")
    ] = None
    part_aliases: Annotated[Words, _doc("other `model_type`s of that object")] = field(default_factory=list)
    requires: Annotated[str | None, _doc("set of layers that a model of the class must have to be of this family")] = (
        None
    )
    forbids: Annotated[str | None, _doc("set of layers that it must not have")] = None


class WrapperEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A section of `wrappers.toml`: a class of several parts, of which one is a model of a family."""

    model_type: Annotated[str, _doc("`model_type` of its config.json")]
    prefixes: Annotated[
        Words, _doc("what stands in place of the `model.` of the part's names; the first is the usual one")
    ]
    part_type: Annotated[str, _doc("`model_type` of the part where its config has none")]
    part: Annotated[str, _doc("object of config.json that describes the part")] = "text_config"
    part_aliases: Annotated[Words, _doc("other `model_type`s of the part")] = field(default_factory=list)
    apart: Annotated[Words, _doc("how names of the other parts begin")] = field(default_factory=list)


class DialectEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[dialect]`: one convention of tensor names (hf, gguf, mlx, canonical ...)."""

    base: Annotated[str | None, _doc("dialect whose names it takes where it has none of its own")] = None
    replace: Annotated[
        dict[str, str],
        _doc("text replaced in all names; `{m}` stands for the prefix, `{o}` for what is in front of its `model.`"),
    ] = field(default_factory=dict)
    prefixes: Annotated[Words, _doc("what `{m}` may be; the first is the usual one")] = field(
        default_factory=lambda: [""]
    )
    order: Annotated[
        Literal["table", "source"], _doc("order of tensors: layer by layer, or as the reference converter writes them")
    ] = "table"
    write_groups: Annotated[list[Words], _doc("roles that are written one after another")] = field(default_factory=list)
    write_first: Annotated[Words, _doc("roles of a source in this dialect that are written before all others")] = field(
        default_factory=list
    )
    write_by_layer: Annotated[list[Words], _doc("role groups written first, by layer")] = field(default_factory=list)
    write_packed_first: Annotated[
        bool, _doc("packed `write_groups` come first, by layer, and name the file's type")
    ] = False
    block_dtype: Annotated[str | None, _doc("block type whose codes these names hold unchanged")] = None
    kept_dtypes: Annotated[dict[str, str], _doc("a source's type to the one written")] = field(default_factory=dict)
    without: Annotated[Words | None, _doc("sets of layers that it doesn't hold")] = None
    mtp_prefixes: Annotated[
        dict[str, str], _doc("prefix, and what stands for it in the optional layers; `{n}` counts these from 0")
    ] = field(default_factory=dict)
    mtp_count: Annotated[
        str | None, _doc("key of config.json that counts the optional layers; the tensors overrule what it says")
    ] = None
    mtp_dialect: Annotated[str | None, _doc("dialect whose names the optional layers have")] = None


class SizeEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[size]`: a symbol, and where it is stated; the first expression whose keys are there."""

    hf: Annotated[Words, _doc("expressions over keys of config.json")] = field(default_factory=list)
    gguf: Annotated[Words, _doc("expressions over keys of a GGUF, without the architecture's name")] = field(
        default_factory=list
    )
    optional: Annotated[bool, _doc("absent or 0 is no error; roles with the symbol then don't exist")] = False
    by_layer: Annotated[
        bool, _doc("a list with the size of each layer; where it is 0, roles with the symbol don't exist")
    ] = False


class LayerSetEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[layers]`: a set of layers, and where it is stated; the first expression whose keys are there. Expressions may
    use the sets above."""

    hf: Annotated[Words, _doc("expressions over keys of config.json")]
    gguf: Annotated[Words, _doc("expressions over keys of a GGUF")]
    optional: Annotated[bool, _doc("all tensors of these layers may be absent; lists by layer end before them")] = False
    include: Annotated[str, _doc("another set whose layers are in it too")] = ""


class RoleEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[role]`: one logical tensor, or one for each value of the indices in its names."""

    kind: Annotated[RoleClass, _doc("what it is, for rules of types")]
    shape: Annotated[str, _doc("dimensions, as expressions of sizes: `H*D, N`")]
    names: Annotated[dict[str, str], _doc("name in each dialect; `''`: not in this dialect, though in its base")] = (
        field(default_factory=dict)
    )
    layout: Annotated[dict[str, str], _doc("layout change from the role's own to a dialect's")] = field(
        default_factory=dict
    )
    bias: Annotated[bool | str, _doc("there is a role NAME_bias too, of this group if it is a text")] = False
    after: Annotated[str | None, _doc("role that it follows in the order of tensors; default: the last one")] = None
    when: Annotated[str | None, _doc("condition on which sizes are known: `E`, `not E`")] = None
    layers: Annotated[str | None, _doc("set of layers that have it, or `layers[K:]` of sizes")] = None
    group: Annotated[str | None, _doc("all tensors of a group are there, or none")] = None
    tied: Annotated[str | None, _doc("role that stands for it where it is absent")] = None
    derived: Annotated[str | None, _doc("function that computes it from the config; it is no weight")] = None
    shapes: Annotated[dict[str, str], _doc("shape in a dialect that has another one; `''`: a scalar")] = field(
        default_factory=dict
    )
    stacked: Annotated[Words, _doc("indices that no dialect's name has")] = field(default_factory=list)
    unstacked: Annotated[Words, _doc("dialects whose tensor has no axis of its own for the indices")] = field(
        default_factory=list
    )
    zeros: Annotated[Words, _doc("dialects that hold zeros where it is absent")] = field(default_factory=list)
    copies: Annotated[str | None, _doc("role of the same layer that it repeats: nothing computes with it")] = None
    as_metadata: Annotated[Words, _doc("dialects that hold it in a key of this name, a number for each index")] = field(
        default_factory=list
    )


class FuseEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[fuse.DIALECT]`: one tensor that holds several roles."""

    roles: Annotated[Words, _doc("roles, joined in this order on their first axis")]
    name: Annotated[str, _doc("name of the tensor")]
    interleave: Annotated[str | None, _doc("size: in so many groups, each with its share of every role")] = None
    layout: Annotated[Words, _doc("layout changes of what is joined, one after another")] = field(default_factory=list)
    by_rank: Annotated[bool, _doc("packed files have its rows rank by rank: refused")] = False


class KeyEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`meta.key`, `meta.tokenizer`: a GGUF key-value and where a config states it."""

    name: Annotated[str, _doc("name of the key; `{a}` is the architecture's")]
    type: Annotated[
        Literal["u32", "i32", "f32", "bool", "str", "arr[bool]", "arr[u32]", "arr[i32]", "arr[f32]", "arr[str]"],
        _doc("type of the value in the GGUF"),
    ]
    config: Annotated[Words, _doc("expressions over the effective config; the first that is set")] = field(
        default_factory=list
    )
    value: Annotated[Any, _doc("constant value")] = None
    map: Annotated[ByKey, _doc("value in the config to value in the GGUF")] = field(default_factory=dict)
    when: Annotated[dict[str, list[Any]], _doc("values that keys must have; `*`: any, `+`: any but 0")] = field(
        default_factory=dict
    )
    restore: Annotated[
        bool | str | Words, _doc("key of config.json that it gives back; `false`: none; default: the first of `config`")
    ] = True
    absent: Annotated[Any, _doc("value that is written where the config states none")] = None
    null: Annotated[bool, _doc("a GGUF without the key means null")] = False
    default: Annotated[Any, _doc("value that a GGUF without the key means")] = None
    omit_if: Annotated[Any, _doc("value that isn't written, as llama.cpp assumes it")] = None
    times: Annotated[float, _doc("factor from config to GGUF")] = 1.0
    subtract: Annotated[str, _doc("expression that is subtracted")] = ""
    divide_by: Annotated[str, _doc("key that the number is divided by, and that is given back")] = ""
    divide_by_sqrt: Annotated[str, _doc("key by whose square root the number is divided")] = ""
    whole: Annotated[bool, _doc("given back as a whole number though the GGUF has f32")] = False
    quantile: Annotated[bool, _doc("list of shares, written as quantiles of the standard normal distribution")] = False
    pad_to: Annotated[int, _doc("length that a list is filled up to with zeros")] = 0
    layers: Annotated[
        str | None,
        _doc("list by layer: the value in this set, 0 in others; without `config`: flags of the set"),
    ] = None
    others: Annotated[str, _doc("expression for the other layers")] = ""
    gaps: Annotated[bool, _doc("a GGUF may have 0 for layers without it, where the family writes one number")] = False
    sets: Annotated[ByKey, _doc("what else a GGUF with this list states about a config")] = field(default_factory=dict)
    token: Annotated[str | None, _doc("the number of this token")] = None
    first: Annotated[bool, _doc("written before the general keys, or before the tokenizer's")] = False
    leading: Annotated[bool, _doc("the tokenizer's key, written before the general keys")] = False
    last: Annotated[bool, _doc("written after all of the tokenizer's keys")] = False
    replaces: Annotated[bool, _doc("stands in the place of the shared key-value of this name")] = False

    def key(self, architecture: str) -> str:
        """The name in a GGUF of this `general.architecture`."""
        return self.name.replace("{a}", architecture)

    @property
    def restored(self) -> list[str]:
        """The keys of config.json that it gives back."""
        if isinstance(self.restore, bool):
            return self.config[:1] if self.restore else []
        return [self.restore] if isinstance(self.restore, str) else self.restore


class ImpliedEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`meta.implied`: a value that every GGUF of the family means."""

    config: Annotated[str, _doc("key of config.json")]
    value: Annotated[str | bool, _doc("expression, or flag")]
    when: Annotated[dict[str, list[Any]], _doc("values that keys must have")] = field(default_factory=dict)


class RequiredValueEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`meta.requires_value`: a value without which llama.cpp's graph computes something else."""

    config: Annotated[str, _doc("key of the effective config")]
    why: Annotated[str, _doc("what the graph does with another value")]
    only: Annotated[list[Any], _doc("values with which it is the same")] = field(default_factory=list)
    equals: Annotated[str, _doc("key that must have the same value")] = ""
    at_least: Annotated[str, _doc("key whose value it must reach, where it is set")] = ""
    nonzero: Annotated[bool, _doc("any value but 0 and null")] = False
    when: Annotated[dict[str, list[Any]], _doc("values of other keys for which it matters")] = field(
        default_factory=dict
    )


class PresenceEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`meta.presence`: values of a key by whether a GGUF has a tensor."""

    tensor: Annotated[str, _doc("name of the tensor")]
    there: Annotated[Any, _doc("value where the GGUF has it")]
    absent: Annotated[Any, _doc("value where it hasn't")]


class MetaEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[meta]`: what ties the family's configs to its GGUFs."""

    base: Annotated[bool, _doc("whether the shared key-values (keys.toml) count")] = True
    without: Annotated[Words, _doc("shared key-values that the family hasn't")] = field(default_factory=list)
    key: Annotated[list[KeyEntry], _doc("further key-values, in order; a text: one of key_values.toml")] = field(
        default_factory=list
    )
    tokenizer: Annotated[list[KeyEntry], _doc("key-values after the tokenizer's own, or in place of them")] = field(
        default_factory=list
    )
    tokens: Annotated[dict[str, str] | None, _doc("keys of config.json that repeat keys of the tokenizer")] = None
    presence: Annotated[
        dict[str, str | PresenceEntry], _doc("flags that a GGUF states by having a tensor (`!`: by not having it)")
    ] = field(default_factory=dict)
    assumed: Annotated[
        dict[str, list[Any]], _doc("values that llama.cpp assumes of keys that a GGUF hasn't; others are lost")
    ] = field(default_factory=dict)
    implied: Annotated[list[ImpliedEntry], _doc("values that follow from others")] = field(default_factory=list)
    requires_value: Annotated[list[RequiredValueEntry], _doc("values that llama.cpp's graph needs")] = field(
        default_factory=list
    )


class MlxEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[mlx]`: what mlx-lm does with models of the family."""

    eight_bits: Annotated[
        Words, _doc("modules that are quantized to 8 bits in groups of 64, by the ends of their paths; `=`: whole path")
    ] = field(default_factory=list)
    model_type: Annotated[dict[str, str], _doc("`model_type` of a config to mlx-lm's name for it")] = field(
        default_factory=dict
    )
    part_of: Annotated[
        dict[str, str], _doc("`model_type` to that of the whole model, in whose config mlx-lm wants this one")
    ] = field(default_factory=dict)
    config: Annotated[
        dict[str, str], _doc("key that mlx-lm needs, and the key of the effective config that has it")
    ] = field(default_factory=dict)
    layers: Annotated[
        dict[str, str], _doc("key that mlx-lm needs, a 0 or 1 for each layer, and the set of layers with a 1")
    ] = field(default_factory=dict)
    period: Annotated[
        dict[str, int], _doc("key that counts the layers to one with full attention, and mlx-lm's default of it")
    ] = field(default_factory=dict)
    uncast: Annotated[Words, _doc("further tensors that keep their type, by the ends of their names")] = field(
        default_factory=list
    )
    refused: Annotated[Words, _doc("keys that mlx-lm's class doesn't read: a model that sets one is refused")] = field(
        default_factory=list
    )


class LayerRulesEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[layer_rules]`: which layers are of another kind where no list says so; for `wb slice`."""

    every: Annotated[
        dict[str, int], _doc("key by which every n-th layer is of another kind, and the class's default of n")
    ] = field(default_factory=dict)
    last: Annotated[str, _doc("`layer_types` of the last layer, whatever a config says")] = ""
    graph_every: Annotated[int, _doc("n, if every n-th layer of llama.cpp's graph has no sliding window")] = 1
    graph_first: Annotated[bool, _doc("whether that is the first of n layers, not the last")] = False
    graph_unrotated: Annotated[int, _doc("n, if llama.cpp's graph doesn't rotate every n-th layer")] = 1


class OverruledEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[overruled]`: a key of config.json whose value transformers replaces; `wb prove` puts it back before it runs."""

    value: Annotated[Any, _doc("value that the class has whatever config.json says")]
    why: Annotated[str, _doc("what it computes otherwise then")]


class VocabularySizeEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`tokenizer.size`: what a vocabulary of this size means."""

    special: Annotated[dict[str, int], _doc("ids of special tokens by role")] = field(default_factory=dict)
    add: Annotated[dict[str, bool], _doc("whether the token of a role is added to every text")] = field(
        default_factory=dict
    )


class TokenizerEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """`[tokenizer]`: what the reference converter does with tokenizers of the family's classes alone."""

    rank_file: Annotated[str, _doc("file of tiktoken ranks whose name other models use for another format")] = ""
    add_prefix_space: Annotated[
        Literal["", "first", "tokens", "last"],
        _doc("where tokenizer_config.json's `add_prefix_space` is written: before or after the tokens, or at the end"),
    ] = ""
    size: Annotated[dict[str, VocabularySizeEntry], _doc("rules by `vocab_size`")] = field(default_factory=dict)
    char_bpe: Annotated[bool, _doc("BPE over characters keeps its merges")] = False
    visible: Annotated[Words, _doc("control tokens that become user-defined")] = field(default_factory=list)
    raw_pre: Annotated[
        dict[str, str],
        _doc("pre-tokenizer name of BPE over characters, by the type of tokenizer.json's pre-tokenizer, or `other`"),
    ] = field(default_factory=dict)
    token_types: Annotated[bool, _doc("whether `type_vocab_size` is written for any tokenizer")] = False
    redefine: Annotated[
        bool,
        _doc(
            "added tokens of tokenizer.json too replace pieces of a SentencePiece model, and only `special` makes one "
            "a control token"
        ),
    ] = False
    piece_types: Annotated[
        dict[str, int], _doc("types of pieces of a SentencePiece model by the start of their text")
    ] = field(default_factory=dict)
    piece_texts: Annotated[dict[str, str], _doc("pieces of a SentencePiece model to write otherwise")] = field(
        default_factory=dict
    )
    special_is_control: Annotated[bool, _doc("byte fallback: `special` makes an added token a control token")] = False
    eot: Annotated[str, _doc("text of the token that ends a turn (PLaMo)")] = ""
    normal: Annotated[Words, _doc("tokens that are normal whatever the file says (PLaMo)")] = field(
        default_factory=list
    )
    tokenizer_eos: Annotated[bool, _doc("whether eos is tokenizer_config.json's, whatever config.json says")] = False


class FamilyTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole table."""

    name: Annotated[str, _doc("name of the family")]
    gguf: Annotated[str, _doc("`general.architecture` of its GGUFs; the name where it is absent")]
    like: Annotated[str | None, _doc("family whose names, sizes and layers it inherits")] = None
    exclude: Annotated[Words, _doc("inherited entries to leave out: `role.q.layout`, `role.*_bias`")] = field(
        default_factory=list
    )
    include: Annotated[Words, _doc("mixins that it begins with")] = field(default_factory=list)
    ignored_prefixes: Annotated[Words, _doc("prefixes of tensors of other parts of a model")] = field(
        default_factory=list
    )
    defaults: Annotated[ByKey, _doc("what a config means where it is silent; a table, or several in a list")] = field(
        default_factory=dict
    )
    config_rules: Annotated[
        Words,
        _doc(
            "rules that complete a config: `uniform(KEYS)`: one value for a list of the same; `last_layer(KEY)`: its "
            "number for -1 and for one beyond it; `adjusted_width`, `attention_by_kind`, `compressed_attention`, "
            "`indexer_types`, `layer_sparsity`, `primary_router`, `query_groups`, `unlike_layers`, `window_layout`: as "
            "the classes that bring these keys compute them"
        ),
    ] = field(default_factory=list)
    architecture: dict[str, ArchitectureEntry] = field(default_factory=dict)
    wrappers: Annotated[Words, _doc("classes of `wrappers.toml` that may have a model of the family as a part")] = (
        field(default_factory=list)
    )
    dialect: dict[str, DialectEntry] = field(default_factory=dict)
    size: dict[str, SizeEntry] = field(default_factory=dict)
    index: Annotated[dict[str, str], _doc("index of names to the size that it runs to; the first is the layer's")] = (
        field(default_factory=dict)
    )
    layers: dict[str, LayerSetEntry] = field(default_factory=dict)
    role: dict[str, RoleEntry] = field(default_factory=dict)
    fuse: dict[str, dict[str, FuseEntry]] = field(default_factory=dict)
    drop: Annotated[dict[str, Words], _doc("names of a dialect that carry nothing")] = field(default_factory=dict)
    meta: MetaEntry | None = None
    tensor_parallel: Annotated[
        dict[str, Split],
        _doc(
            "how a role is split among ranks: by outputs (`column`), by inputs (`row`), or not; see mixins/common.toml"
        ),
    ] = field(default_factory=dict)
    layer_rules: LayerRulesEntry = LayerRulesEntry()
    overruled: Annotated[dict[str, OverruledEntry], _doc("keys of config.json that transformers overrules")] = field(
        default_factory=dict
    )
    mlx: MlxEntry = MlxEntry()
    tokenizer: TokenizerEntry | None = None


#: The structs of all sections, as they stand above: the order of the reference page.
SECTIONS: Final = tuple(kind for name, kind in list(globals().items()) if name.endswith("Entry"))
