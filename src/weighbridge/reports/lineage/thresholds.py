"""The numbers that decide between relations. docs/guide-lineage.md has their measurements; each has a fault that a
test sees (tests/reports/test_lineage_mutation.py)."""

from __future__ import annotations

from typing import Final

from weighbridge.base.limits import MIB

# ------------------------------------------------------------------------------------------ reading

#: Elements of the rows that identify a layer. Independent layers have a cosine of 0 +- 1/sqrt(elements).
ANCHOR_ELEMENTS: Final = 2048
#: Elements of the rows that are compared of one matrix.
MATRIX_ELEMENTS: Final = 4096
#: Layers whose matrices are all compared, spread over the model.
LAYERS: Final = 4
#: Rows in which the rank of a change is counted: first a few, then more if they don't suffice.
RANK_ROWS: Final = (48, 128)
#: Tensors of other parts, such as towers, that are compared.
OTHERS: Final = 8
#: Bytes of samples read from a model. Rows beyond it are skipped, except for the first `ALWAYS` matrices: a matrix that
#: is stored transposed can only be read whole.
MODEL_BYTES: Final = 4 * MIB
ALWAYS: Final = 3

# ------------------------------------------------------------------------------------------ relations

#: Cosine of two layers that are versions of one layer. Quantized to 2 bits they have 0.97; layers of one
#: model, or of independent ones, 0 +- 0.02.
SAME_LAYER: Final = 0.5
#: Cosine of two models with a common origin. Independent models have less than 0.01.
RELATED: Final = 0.1
#: Values of a tensor that may be off the nearest level of a quantized model, if it was made from the other. None is
#: with the true parent, whatever the type; after two steps of training some are, unless the type has 4 bits or less.
OFF: Final = 0
#: Rounding of scales after the codes were computed, relative to the values: F16's for ggml's types without super-blocks
#: (K-quants compute the codes last), BF16's for packed weights.
SLACK_GGML: Final = 2.0**-11
SLACK_PACKED: Final = 2.0**-8
#: Distances to two possible parents that differ by less, relatively, don't decide between them.
TIE: Final = 2e-3
#: Largest difference of a norm's values relative to their size + 1: formats store them shifted by 1.
NORM: Final = 1e-6
#: Share of equal values, after sorting, of rows whose columns were permuted or removed. Chance makes it less than 0.5.
PERMUTED: Final = 0.98
#: Singular values of rounding stay below this multiple of their expected largest.
EDGE: Final = 1.5
#: The energy of a change with a rank, in energies of rounding. Below it, the sparse flips of a short fine-tune in bf16
#: look like a few directions.
LOUD: Final = 8.0
#: The energy of rounding left after a change of low rank, in expected energies.
TAIL: Final = 2.0
#: A rank is at most this share of the rows that it is counted in,
LOW_RANK: Final = 0.5
#: and its last singular value is this multiple of the next: the spectrum of a full fine-tune falls slowly.
GAP: Final = 1.5

# ------------------------------------------------------------------------------------------ mixtures

#: The part of the difference to the nearest model that a mixture may leave: checkpoints of one run leave more.
MIX_REST: Final = 0.05
#: The energy that a mixture may leave, in energies of rounding: arithmetic in bf16 rounds up to three times.
MIX_NOISE: Final = 3.0
#: A source with less weight isn't one.
MIX_WEIGHT: Final = 0.01
#: A mixture that leaves no more than this is certain without equal values.
MIX_PROOF: Final = 2e-3
#: Share of values that a mixture reproduces, if it is one and was rounded once.
MIX_EQUAL: Final = 0.8
#: How much more than that of any other mixture of as many models the right one leaves, at least,
MIX_CLEAR: Final = 1.03
#: and how much less a mixture of more models must leave to be preferred: roundings of similar sums are correlated.
MIX_FEWER: Final = 1.2
#: How far from 1 the weights of a matrix may add up to: on a sphere, models with a cosine of 0.6 reach 1.12.
MIX_SPHERE: Final = 0.15
#: Share of the matrices that must have several sources if weights differ by matrix. SLERP by layer often ends at one.
MIX_MATRICES: Final = 0.25
#: Models whose mixtures are tried: the nearest ones.
MIX_SOURCES: Final = 16
#: The most models that one is taken to be merged from.
MIX_SIZE: Final = 4

# ------------------------------------------------------------------------------------------ sparse merges

#: Matrices whose elements are explained, spread over the model.
SPARSE_MATRICES: Final = 8
#: Rounding of a change relative to its size: arithmetic in bf16 rounds it up to three times.
SPARSE_ARITHMETIC: Final = 2.0**-7
#: Least share of the changed elements that a single source explains, beyond chance.
SPARSE_VISIBLE: Final = 0.03
#: Share of all elements that are the base's although each source changed them. A fine-tune of a source has none.
SPARSE_DROPPED: Final = 0.02
#: Share of the changed elements that only this source explains,
SPARSE_NEEDED: Final = 0.02
#: and the unexplained part of it. Measured: at most 0.005 with the true sources; with one that was trained two steps
#: longer, 0.02 or more.
SPARSE_OFF: Final = 0.01
#: How far from 1 the factor of a single source may be. From other multiples the base could as well be made.
SPARSE_WHOLE: Final = 0.02
