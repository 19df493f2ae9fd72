"""The laws of packings, for every registered schema and those of plug-ins: recognising, counting, cutting and decoding
agree on the matrix."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tests.architecture.house import ROOT
from tests.conformance.packing_examples import EXAMPLES, IN, OUT, UNDECODED, Example
from tests.models.test_parallel_packed import by_hand, model
from tests.packings.stored import of_numpy, values
from tests.plugins import installed, toy_packing, toy_strips
from tests.programs import load_program
from tests.unpacked import unpack

import weighbridge as wb
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.spec import Spec
from weighbridge.base.words import name_ends
from weighbridge.containers.base import Entry
from weighbridge.conversion.schemes import configs
from weighbridge.conversion.schemes import table as schemes
from weighbridge.io.source import BytesSource
from weighbridge.models.parameter_count import count
from weighbridge.packings.schema.base import COLUMNS, ROWS, AxisUse, Group, Match, PackingSchema, Solution
from weighbridge.packings.schema.groups import companions, find
from weighbridge.packings.schema.registry import SHIPPED, any_present
from weighbridge.packings.schema.registry import schemas as registered
from weighbridge.packings.unpacking import groups, probe
from weighbridge.providers.dtypes import type_of
from weighbridge.providers.quantization import quantization_of
from weighbridge.reports.inspect.schemes import schemes as schemes_of
from weighbridge.reports.prove.bounds import type_of as bound_type
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor, Stored
from weighbridge.tensors.slicing import take

#: The toys, which the tests install themselves.
TOYS = {"toy": toy_packing, "strips": toy_strips}
CASES = [pytest.param(name, make, id=f"{name}-{i}") for name, makes in EXAMPLES.items() for i, make in enumerate(makes)]
each_example = pytest.mark.parametrize(("name", "make"), CASES)


@pytest.fixture(autouse=True)
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The plug-in of a test of its packing."""
    callspec = getattr(request.node, "callspec", None)
    install = TOYS.get(callspec.params.get("name")) if callspec else None
    if install is None:
        yield
        return
    with installed(install(tmp_path_factory.mktemp("toy"))):
        yield


def matched(example: Example) -> Match[Any]:
    (found,) = {id(g.match): g.match for g in groups(example.tensors, example.config).values()}.values()
    return found


def decoded(example: Example) -> NDArray[np.float32]:
    (node,) = unpack(example.tensors, example.config).values()
    return values(node)


def test_every_schema_has_an_example() -> None:
    assert {schema.name for schema in registered() if schema.reader} == set(EXAMPLES) - set(TOYS)
    assert {schema.name for schema in registered() if not schema.reader} == set(UNDECODED)
    assert len({schema.name for schema in SHIPPED}) == len(SHIPPED)


@each_example
def test_a_group_is_recognised_by_its_own_schema(name: str, make: Callable[[], Example]) -> None:
    example = make()
    match = matched(example)
    assert match.schema.name == name
    assert set(match.tensors) == set(example.tensors)


class _Unread(dict[str, bytes]):
    """Values of members that must not be read."""

    def __getitem__(self, role: str) -> bytes:
        raise AssertionError(f"{role} was read")


_ONCE = {"strips", *(schema.name for schema in registered() if not schema.by_module)}


@pytest.mark.parametrize(("name", "make"), [case for case in CASES if case.values[0] in _ONCE])
def test_what_is_solved_once_for_equal_specs_depends_on_nothing_else(name: str, make: Callable[[], Example]) -> None:
    example = make()
    match = matched(example)
    specs = {role: example.tensors[stored].spec for role, stored in match.stored.items()}
    found = [
        match.schema.recognize(Group(module, specs, example.config, _Unread()), match.recognized.ignored)
        for module in ("a", "model.layers.7.b")
    ]
    assert found[0] == found[1] == match.recognized


def test_a_model_of_many_experts_solves_each_shape_once() -> None:
    (example, *_) = (make() for make in EXAMPLES["fp8.weight_scale_inv"])
    (module,) = {name.rpartition(".")[0] for name in example.tensors}
    solved: list[str] = []

    def solve(group: Group) -> Solution:
        solved.append(group.module)
        return schema.solve(group)

    schema = matched(example).schema
    many = {f"experts.{n}{name.removeprefix(module)}": t for n in range(200) for name, t in example.tensors.items()}
    found = find([replace(schema, solve=solve)], many, example.config, lambda name, limit: b"")
    assert {match.module for match in found.values()} == {f"experts.{n}" for n in range(200)}
    assert solved == ["experts.0"]


@each_example
def test_inspect_counts_what_is_unpacked(name: str, make: Callable[[], Example]) -> None:
    example = make()
    (node,) = unpack(example.tensors, example.config).values()
    specs = {name: node.spec for name, node in example.tensors.items()}
    entries = [Entry(name, spec.dtype, spec.shape, 0, spec.nbytes) for name, spec in specs.items()]
    for read in (reading(example.tensors), None):
        if read is None and any(spec.dtype.name == "I64" for spec in specs.values()):
            continue  # its shape is in a tensor
        counted = count(entries, example.config, read)
        assert counted.total == node.spec.elements
        assert set(counted.packed) == set(example.tensors)
        assert counted.schemes == {matched(example).schema.label: 1}


@each_example
def test_every_command_says_the_same_bits(name: str, make: Callable[[], Example]) -> None:
    """Of a code, whatever it is stored in: `inspect`, the weight provider, `load` and the bounds of `prove`."""
    example = make()
    (node,) = unpack(example.tensors, example.config).values()
    if not isinstance(node, QuantizedTensor):
        return  # unpacked while it is read (HQQ)
    specs = {name: node.spec for name, node in example.tensors.items()}
    entries = [Entry(name, spec.dtype, spec.shape, 0, spec.nbytes) for name, spec in specs.items()]
    (shown,) = schemes_of(entries, count(entries, example.config, reading(example.tensors)))
    bits = node.packing.code_bits
    assert shown.bits == bits
    assert (found := quantization_of(node)) is not None
    assert found.bits == bits
    assert type_of(node).name.endswith(f"-{bits}")
    assert bound_type(node).endswith(f" {bits}")
    assert (match := matched(example)).bits in (None, bits), match


each_undecoded = pytest.mark.parametrize(
    ("name", "make", "bits"),
    [pytest.param(name, make, bits, id=f"{name}-{bits}") for name, rows in UNDECODED.items() for make, bits in rows],
)


@each_undecoded
def test_weights_that_are_not_decoded_are_counted(name: str, make: Callable[[], Example], bits: int) -> None:
    specs = {tensor: node.spec for tensor, node in make().tensors.items()}
    entries = [Entry(tensor, spec.dtype, spec.shape, 0, spec.nbytes) for tensor, spec in specs.items()]
    counted = count(entries)
    (shown,) = schemes_of(entries, counted)
    assert (counted.total, shown.scheme, shown.bits) == (OUT * IN, name, bits)
    assert set(counted.packed) == set(specs)
    assert {match.shape for match in counted.packed.values()} == {(OUT, IN)}


@each_undecoded
def test_weights_that_are_not_decoded_are_refused(name: str, make: Callable[[], Example], bits: int) -> None:
    example = make()
    with pytest.raises(UnsupportedError, match=rf"m\.weight is packed as {name.upper()}, which isn't decoded"):
        groups(example.tensors, example.config)


def test_exl2_of_mixed_bits_has_no_single_number() -> None:
    (make, bits), *_ = UNDECODED["exl2"]
    tensors = make().tensors
    mixed = of_numpy(np.zeros((IN * bits // 32 + 2, OUT), "<i4"), "I32")
    match = find(registered(), {**tensors, "m.q_weight": mixed}, {}, reading(tensors))["m.q_weight"]
    assert (match.shape, match.bits) == ((OUT, IN), None)


#: A tensor with another shape, for which the parts don't belong together.
MISFITS: dict[str, dict[str, tuple[int, ...]]] = {
    "aqlm": {"codes": (OUT, IN // 8, 3), "codebooks": (2, 255, 1, 8), "scales": (OUT // 2, 1, 1, 1)},
    "exl2": {"q_weight": (IN // 32 * 8 + 1, OUT), "q_scale": (IN // 64, OUT // 8 + 1), "q_scale_max": (IN // 64 + 1,),
             "q_groups": (IN // 64,), "q_invperm": (IN // 16,)},
    "exl3": {"trellis": (IN // 16, OUT // 16, 20), "suh": (IN - 1,), "svh": (OUT * 2,)},
    "qtip": {"trellis": (IN * OUT // 256 + 1, 32), "SU": (IN - 1,), "SV": (0,)},
}  # fmt: skip


@pytest.mark.parametrize(("name", "member"), [(name, member) for name, rows in MISFITS.items() for member in rows])
def test_parts_that_do_not_belong_together_are_refused(name: str, member: str) -> None:
    example = EXAMPLES[name][0]() if name in EXAMPLES else UNDECODED[name][0][0]()
    dtype = example.tensors[f"m.{member}"].spec.dtype
    wrong = Stored(Spec(MISFITS[name][member], dtype), BytesSource(b""), 0)
    with pytest.raises(
        FormatError, match=r"^m: (parts don't belong|a codebook's size|trellis is misshapen|scales don't belong)"
    ):
        groups({**example.tensors, f"m.{member}": wrong}, example.config)


def reading(tensors: Mapping[str, Node]) -> Callable[[str, int], bytes]:
    return lambda name, limit: probe(name, tensors[name], limit)


@each_example
def test_recognising_reads_declared_probes_only(name: str, make: Callable[[], Example]) -> None:
    example = make()
    asked: dict[str, int] = {}

    def read(tensor: str, limit: int) -> bytes:
        asked[tensor] = limit
        return reading(example.tensors)(tensor, limit)

    match = next(iter(find(registered(), example.tensors, example.config, read).values()))
    declared = {match.stored[role]: m.probe for role, m in match.schema.members.items() if role in match.stored}
    assert asked == {tensor: declared[tensor] for tensor in asked}
    assert all(asked.values())


@each_example
def test_an_incomplete_group_is_no_tensor(name: str, make: Callable[[], Example]) -> None:
    example = make()
    match = matched(example)
    for role, tensor in match.stored.items():
        left = {key: node for key, node in example.tensors.items() if key != tensor}
        if not match.schema.members[role].required:
            continue
        errors: list[WeighbridgeError] = []
        assert not groups(left, example.config, lambda _, error: errors.append(error))  # noqa: B023
        assert all(isinstance(error, FormatError) and re.match(r"m\b", str(error)) for error in errors)


@each_example
def test_a_complete_group_has_no_orphans(name: str, make: Callable[[], Example]) -> None:
    """`verify` reports a member without its companions, whichever packing it may belong to."""
    tensors, needs = make().tensors, companions(SHIPPED)
    for tensor, node in tensors.items():
        for ending, (dtypes, siblings) in needs.items():
            module = tensor.removesuffix(ending)
            if module != tensor and node.spec.dtype in dtypes:
                assert any(module + sibling in tensors for sibling in siblings), (tensor, siblings)


@each_example
def test_rows_read_alone_are_those_of_the_whole(name: str, make: Callable[[], Example]) -> None:
    (node,) = unpack(make().tensors, make().config).values()
    whole = values(node).reshape(node.spec.rows, -1)
    for lo, hi in ((0, 1), (3, 40), (node.spec.rows - 1, node.spec.rows)):
        part = nodes.decode(node).read(lo, hi).view(np.float32).reshape(hi - lo, -1)
        np.testing.assert_array_equal(part, whole[lo:hi])


@each_example
def test_rows_that_move_keep_their_values(name: str, make: Callable[[], Example]) -> None:
    (node,) = unpack(make().tensors, make().config).values()
    rows = node.spec.rows
    whole, half = values(node).reshape(rows, -1), rows // 2
    matrix = nodes.reshape(node, (rows, node.spec.shape[-1]))
    np.testing.assert_array_equal(values(nodes.slice_rows(matrix, half, (half, node.spec.shape[-1]))), whole[half:])
    order = np.roll(np.arange(rows), half)
    np.testing.assert_array_equal(values(nodes.gather(matrix, order)), whole[order])
    np.testing.assert_array_equal(values(nodes.concat([matrix, matrix])), np.concatenate([whole, whole]))


# ------------------------------------------------------------------------------------------------ storage axes

_NO_AXES = ("hqq", "bitnet", "aqlm", "exl3", "comfy", "bnb", "torchao")
ALONG = [case for case in CASES if not any(word in str(case.values[0]) for word in _NO_AXES)]
each_cut = pytest.mark.parametrize(("name", "make"), ALONG)


@each_cut
def test_axes_have_the_entries_that_they_declare(name: str, make: Callable[[], Example]) -> None:
    example = make()
    match = matched(example)
    sizes = match.shape[-2:]
    for tensor, axes in match.storage_axes.items():
        shape = example.tensors[tensor].spec.shape
        for size, use in zip(shape[len(shape) - len(axes) :], axes, strict=True):
            if use is not None:
                assert size == -(-sizes[use.side] // use.each) * use.entries, (tensor, use)


@pytest.mark.parametrize("side", [ROWS, COLUMNS], ids=["rows", "columns"])
@each_cut
def test_a_cut_of_every_member_is_a_cut_of_the_matrix(name: str, make: Callable[[], Example], side: int) -> None:
    example = make()
    match = matched(example)
    size = match.shape[len(match.shape) - 2 + side]
    uses = match.storage_axes
    step = math.lcm(*(use.each for axes in uses.values() for use in axes if use is not None and use.side == side))
    half = size // 2 // step * step
    if not half or (side == COLUMNS and not np.array_equal(np.sort(order(example)), order(example))):
        return  # nothing to cut, or groups of columns in any order
    cut = {tensor: cut_member(node, uses[tensor], side, half) for tensor, node in example.tensors.items()}
    if "shape" in match.stored:
        shape = [*match.shape[:-2], *(half if i == side else d for i, d in enumerate(match.shape[-2:]))]
        cut[match.stored["shape"]] = of_numpy(np.array(shape, "<i8"), "I64")
    want = np.take(decoded(example), range(half), axis=len(match.shape) - 2 + side)
    np.testing.assert_array_equal(decoded(Example(cut, example.config)), want)


def order(example: Example) -> NDArray[np.int32]:
    index = next((node for name, node in example.tensors.items() if name.endswith("g_idx")), None)
    return index.read_all().view(np.int32) if index is not None else np.zeros(1, np.int32)


def cut_member(node: Node, axes: tuple[AxisUse | None, ...], side: int, half: int) -> Node:
    first = len(node.spec.shape) - len(axes)
    for i, use in enumerate(axes):
        if use is not None and use.side == side:
            node = take(node, first + i, [(0, half // use.each * use.entries)])
    return node


# ------------------------------------------------------------------------------------------------ the room


def test_schemas_load_without_numpy() -> None:
    code = "import sys, weighbridge.packings.schema.registry; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------------------------ the way out

SCHEMES = [pytest.param(name, id=name) for name in schemes.SCHEMES]


def packed(name: str) -> tuple[NDArray[np.float32], schemes.Scheme, dict[str, Node]]:
    """Values, the scheme, and the values packed in it."""
    scheme = schemes.SCHEMES[name]
    x = np.random.default_rng(5).normal(size=(OUT, IN)).astype(np.float32)
    node = nodes.const(x, F32)
    return x, scheme, scheme.write(scheme.round("m.weight", node, scheme, F32, nodes.abs_max([node])), scheme.symmetric)


def as_stored(parts: Mapping[str, Node]) -> dict[str, Node]:
    return {f"m{suffix}": nodes.Const(node.spec, node.read_all().tobytes()) for suffix, node in parts.items()}


def hints(name: str, scheme: schemes.Scheme) -> Mapping[str, Any]:
    settings = {"m": schemes.Settings(scheme.bits, scheme.group, scheme.symmetric)}
    return {"quantization_config": configs.config(scheme, settings, [])}


@pytest.mark.parametrize("name", SCHEMES)
def test_what_is_packed_comes_back_within_its_step(name: str) -> None:
    x, scheme, parts = packed(name)
    (node,) = unpack(as_stored(parts), hints(name, scheme)).values()
    group = min(scheme.group or IN, 32 if scheme.block else IN)
    reach = np.abs(x.reshape(-1, group)).max(1, keepdims=True) if not scheme.block else np.abs(x).max()
    # Integers: a step of the group's range. Floats of few bits: a quarter of the largest value, of 8 bits a sixteenth.
    floats_ = scheme.format.startswith(("mxfp", "nvfp", "float")) or scheme.method == "fp8"
    step = {4: 1 / 4, 6: 1 / 8, 8: 1 / 16}[scheme.bits] if floats_ else 2.02 / (2**scheme.bits - 1)
    assert (np.abs(values(node) - x).reshape(-1, group) <= step * reach + 1e-6).all()


@pytest.mark.parametrize("name", SCHEMES)
def test_what_is_unpacked_is_packed_again_to_the_same_bytes(name: str) -> None:
    _, scheme, parts = packed(name)
    stored = as_stored(parts)
    (node,) = unpack(stored, hints(name, scheme)).values()
    form = scheme.read(node)
    assert not isinstance(form, str), form
    again = as_stored(scheme.write(form, scheme.symmetric))
    assert {key: node.read_all().tobytes() for key, node in again.items()} == {
        key: node.read_all().tobytes() for key, node in stored.items()
    }


# ------------------------------------------------------------------------------------------------ plug-ins


def toy_parts(outer: int, inner: int) -> dict[str, Node]:
    rng = np.random.default_rng(outer * inner)
    return {"m.toy_codes": of_numpy(rng.integers(0, 256, (outer, inner), np.uint8), "U8"),
            "m.toy_scale": of_numpy(rng.uniform(0.5, 1, (outer, 1)).astype("<f4"), "F32")}  # fmt: skip


def strip_parts(outer: int, inner: int) -> dict[str, Node]:
    rng = np.random.default_rng(outer * inner)
    return {"m.strip_codes": of_numpy(rng.integers(0, 256, (inner // 2, outer), np.uint8), "U8"),
            "m.strip_scale": of_numpy(rng.uniform(0.5, 1, (inner // 32, outer)).astype("<f2"), "F16"),
            "m.strip_zero": of_numpy(rng.integers(0, 16, (1, outer), np.uint8), "U8")}  # fmt: skip


def toy_values(codes: NDArray[Any], scale: NDArray[Any]) -> NDArray[Any]:
    return (codes.astype(np.float32) - 128) * scale


def strip_values(codes: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any]) -> NDArray[Any]:
    unpacked = np.stack([codes & 15, codes >> 4], axis=1).reshape(-1, codes.shape[1]).astype(np.float32)
    return ((unpacked - zero) * np.repeat(scale.astype(np.float32), 32, axis=0)).T


PLUGGED: dict[str, tuple[Callable[..., dict[str, Node]], Callable[..., NDArray[Any]], list[str]]] = {
    "toy": (toy_parts, toy_values, ["toy_codes", "toy_scale"]),
    "strips": (strip_parts, strip_values, ["strip_codes", "strip_scale", "strip_zero"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLUGGED)
def test_a_plugin_is_one_file_that_every_command_knows(tmp_path: Path, name: str) -> None:
    """Identify names it, inspect counts it, verify finds nothing, convert decodes it, the docs list it."""
    parts, decoded_by_hand, members = PLUGGED[name]
    source = model(tmp_path / "plain")
    folder = by_hand(tmp_path / name, source, parts, {"quant_method": name})
    assert wb.identify(folder / "model.safetensors").detail["packings"] == [name]
    report = wb.inspect(folder)
    assert report.parameters == wb.inspect(source).parameters
    assert {row.scheme for row in report.schemes} == {name, "F32"}
    assert not [f for f in wb.verify(folder).findings if f.rule.startswith("config/")]
    wb.convert(folder, tmp_path / "out", to="hf", dtype="f32")
    assert docs_rows(name) == [f"| `{name}` |  |"]
    tensors, stored = load_file(tmp_path / "out" / "model.safetensors"), load_file(folder / "model.safetensors")
    module = "model.layers.0.self_attn.q_proj"
    want = decoded_by_hand(*(stored[f"{module}.{member}"] for member in members))
    np.testing.assert_array_equal(tensors[f"{module}.weight"], want)


@pytest.mark.slow
def test_without_its_package_a_packing_is_not_listed() -> None:
    assert docs_rows("toy") == []


WRONG = {
    '"rows columns"': ('"rows colums"', "the member 'codes' has the axis 'colums', not rows, columns"),
    '"rows -"': ('"rows/group"', "the axis 'rows/group' of a packing has a unit that solve"),
    'key="codes"': ('key="code"', "its key 'code' is none of its members codes, scales"),
    'Evidence("toy", "toy codes and scales")': ('Evidence("toy", "x", "none")', "names the unknown member 'none'"),
    '".toy_codes"': ('""', "its key 'codes' has no suffix"),
    '"toy", "toy", "toy",': ('"gptq", "toy", "toy",', "registers a packing 'gptq', which exists already"),
    "    codes, scale = group": ("    1 / 0; codes, scale = group", "plug-in 'toy' failed: ZeroDivisionError"),
    "    packing = IntQuant": ("    1 / 0; packing = IntQuant", "plug-in 'toy' failed: ZeroDivisionError"),
}


@pytest.mark.parametrize("right", WRONG)
def test_a_wrong_packing_is_an_error_that_names_it(tmp_path: Path, right: str) -> None:
    """A wrong declaration is refused when the plug-in is loaded, a failing function when it is called."""
    wrong, words = WRONG[right]
    package = toy_packing(tmp_path)
    text = (package / "toy_packing.py").read_text()
    assert right in text
    (package / "toy_packing.py").write_text(text.replace(right, wrong))
    with installed(package), pytest.raises((UnsupportedError, UsageError), match=words):
        unpack(toy_parts(64, 64), {})


def docs_rows(packing: str) -> list[str]:
    """Rows of a packing on the page of supported packings, as the generator of the docs writes it."""
    generate = load_program(ROOT / "docs" / "generate.py")
    return [line for line in "\n".join(generate.supported()).split("\n") if f"`{packing}`" in line]


@pytest.mark.parametrize("schema", SHIPPED, ids=lambda schema: schema.name)
@pytest.mark.parametrize("module", ["m", "model.layers.0.a_module_with_a_name_longer_than_the_end_that_is_compared"])
def test_a_packed_weight_is_seen_by_the_end_of_its_name(schema: PackingSchema, module: str) -> None:
    names = [f"{module}.other.weight", f"{module}.bias"]
    assert not any_present(names)
    names.append(module + schema.suffix)
    assert any_present(names)
    assert any_present(names, name_ends(names))
