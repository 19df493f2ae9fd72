"""Every guard of the pickle machine and of what reads tensors from it is one that some case needs: taken out, a test
turns red. So is every limit: raised, what it refuses goes through."""

from __future__ import annotations

import pickle
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from tests.mutation import Check, Fault, assert_needed, assert_seen, guards, red
from tests.unpickle import test_lenient, test_machine, test_readers
from tests.unpickle import test_torch as checkpoints

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.torch import bare_pickle as pickles
from weighbridge.containers.torch import entries as torch_entries
from weighbridge.containers.torch import tar as torch_tar
from weighbridge.containers.torch import zip as torch_zip
from weighbridge.io.source import BytesSource
from weighbridge.unpickle import machine, state, steps, text_numbers, values
from weighbridge.unpickle.libraries import numpy as numpy_calls
from weighbridge.unpickle.libraries import torch, torch_calls, torch_types
from weighbridge.unpickle.libraries import torch_legacy as legacy

pytestmark = pytest.mark.mutation


def left_out(value: bytes, rule: str = "pickle.left-out") -> None:
    """A checkpoint with this value has its good tensor, and says what is left out."""
    index = torch_zip.parse(BytesSource(checkpoints.checkpoint(b"", value)))
    assert [e.name for e in index] == ["a"]
    assert rule in [f.rule for f in index.findings]


def window() -> None:
    """Texts across the end of the machine's window."""
    value = [f"{i}" * 50 for i in range(2000)]
    assert machine.Machine(BytesSource(pickle.dumps(value, 2))).run() == value


def odd_length() -> None:
    data = b"".join((b"\x80\x04", call(*BUFFER, b"C\3abc", kind(), ONE, b"U\1C"), b"."))
    (finding,) = pickles.parse(BytesSource(data)).findings
    assert "of 4 bytes has 3" in finding.message


def no_room() -> None:
    text = values.Blob(0, BytesSource(checkpoints.saved(7, new=False).decode("latin-1").encode()), 0, 9)
    text.codec = "utf-8"
    assert "memory" in str(torch_types.embedded(text, -1))


def array_left_out(change: tuple[bytes, ...]) -> None:
    test_readers.test_broken_arrays_are_left_out(change)


def hostile(data: bytes, rule: str, words: str) -> None:
    index = torch_zip.parse(BytesSource(data))
    assert [e.name for e in index] == ["a"]
    assert any(f.rule == f"pickle.{rule}" and words in f.message for f in index.findings)


def refused(parse: Callable[[Any], object], data: bytes, why: str) -> None:
    with pytest.raises((FormatError, UnsupportedError), match=why):
        parse(BytesSource(data))


U = "torch._utils"


def call(module: str, name: str, *args: bytes) -> bytes:
    """A call with arguments that are pickled already."""
    return f"c{module}\n{name}\n(".encode() + b"".join(args) + b"tR"


FLOATS = b"ctorch\nFloatStorage\n"


def storage(of: bytes = FLOATS, numel: bytes = b"K<", *view: bytes, word: bytes = b"storage") -> bytes:
    return b"(U\7" + word + of + b"U\x010U\3cpu" + numel + b"".join(view) + b"tQ"


SHAPE, STRIDES, NO, HOOKS = b"K\3\x85", b"K\1\x85", b"\x89", b"N"
V2 = (storage(), b"K\0", SHAPE, STRIDES, NO, HOOKS)
GLOBAL = b"ctorch\nfloat32\n"
F8 = b"ctorch\nnosuch\n"
SCHEME = b"(ctorch\nper_tensor_affine\nG?\xe0\0\0\0\0\0\0K\0t"
COO = call("torch.serialization", "_get_layout", b"U\x10torch.sparse_coo")
ARRAY, SCALAR = ("numpy.core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "scalar")
BUFFER, ONE = ("numpy.core.numeric", "_frombuffer"), b"K\1\x85"


def kind(code: bytes = b"U\2f4") -> bytes:
    return call("numpy", "dtype", code)


GOOD = call(U, "_rebuild_tensor_v2", *V2)

# Values that no torch writes: each breaks one thing.
ODD: dict[str, bytes] = {
    "an id of four": call(U, "_rebuild_tensor_v2", b"(U\7storagectorch\nFloatStorage\nU\x010U\3cputQ", *V2[1:]),
    "an id of another word": call(U, "_rebuild_tensor_v2", storage(word=b"stowage"), *V2[1:]),
    "no id": call(U, "_rebuild_tensor_v2", b"N", *V2[1:]),
    "a class of another module": call(U, "_rebuild_tensor_v2", storage(b"cm\nFloatStorage\n"), *V2[1:]),
    "a class that is text": call(U, "_rebuild_tensor_v2", storage(b"U\1x"), *V2[1:]),
    "a length that is text": call(U, "_rebuild_tensor_v2", storage(numel=b"U\1x"), *V2[1:]),
    "a length below zero": call(U, "_rebuild_tensor_v2", storage(numel=b"J\xff\xff\xff\xff"), *V2[1:]),
    "a view of two": call(U, "_rebuild_tensor_v2", storage(FLOATS, b"K<", b"K\0K\1\x86"), *V2[1:]),
    "a view outside": call(U, "_rebuild_tensor_v2", storage(FLOATS, b"K<", b"(U\1vK\x32K\x14t"), *V2[1:]),
    "flags as a list": call(U, "_rebuild_tensor_v2", *V2, b"]"),
    "a flag of another name": call(U, "_rebuild_tensor_v2", *V2, b"}U\1x\x88s"),
    "a flag that is a number": call(U, "_rebuild_tensor_v2", *V2, b"}U\3negK\1s"),
    "a conjugated float": call(U, "_rebuild_tensor_v2", *V2, b"}U\4conj\x88s"),
    "ranks of v3": call(U, "_rebuild_tensor_v3", storage(), b"K\0", SHAPE, b")", NO, HOOKS, GLOBAL),
    "a type of v3": call(U, "_rebuild_tensor_v3", *V2, F8),
    "a type of v3 that is text": call(U, "_rebuild_tensor_v3", *V2, b"U\7float32"),
    "a type of v3 of another module": call(U, "_rebuild_tensor_v3", *V2, b"cm\nfloat32\n"),
    "five arguments": call(U, "_rebuild_tensor_v2", *V2[:5]),
    "eight arguments": call(U, "_rebuild_tensor_v2", *V2, b"N", b"N"),
    "a parameter of text": call(U, "_rebuild_parameter", b"U\1x", NO, HOOKS),
    "a parameter without data": b"ctorch.nn.parameter\nParameter\n)\x81",
    "an old tensor without state": b"ctorch\nFloatTensor\n)\x81",
    "an old tensor of other numbers": b"ctorch\nFloatTensor\n)\x81("
                                      + storage(b"ctorch\nIntStorage\n") + b"K\0" + SHAPE + STRIDES + b"tb",
    "an old tensor with arguments": b"ctorch\nFloatTensor\n(K\1t\x81(" + storage() + b"K\0" + SHAPE + STRIDES + b"tb",
    "a subclass made by others": call("torch._tensor", "_rebuild_from_type_v2", b"cm\nf\n", b"cm\nT\n", b")", b"N"),
    "a scheme that is not known": call(U, "_rebuild_qtensor", *V2[:4], b"(ctorch\nsome_affine\nK\1K\0t", NO, HOOKS),
    "a scheme that is text": call(U, "_rebuild_qtensor", *V2[:4], b"(U\x11per_tensor_affineK\1K\0t", NO, HOOKS),
    "sparse data of two": call(U, "_rebuild_sparse_tensor", COO, b"(" + GOOD + GOOD + b"t"),
    "sparse data that is a list": call(U, "_rebuild_sparse_tensor", COO, b"]"),
    "a meta tensor": call(U, "_rebuild_meta_tensor_no_storage", GLOBAL, SHAPE, STRIDES, NO),
    "a size of text": call("torch", "Size", b"U\1x"),
    "text in another code": call("_codecs", "encode", b"U\1x", b"U\5utf-8"),
    "text that is no bytes": call("_codecs", "encode", b"X\3\0\0\0\xe2\x82\xac", b"U\6latin1"),
    "a changed tensor": GOOD + b"K\1K\2s",
    "a tensor with a state": GOOD + b"}b",
    "a tensor with items": GOOD + b"K\1a",
    "a storage made of nothing": call("torch.storage", "_load_from_bytes"),
    "a storage made of rubbish": call("torch.storage", "_load_from_bytes", b"C\3abc"),
    "a sparse size below zero": call(U, "_rebuild_sparse_tensor", COO, b"(" + GOOD + GOOD + b"J\xff\xff\xff\xff\x85t"),
    "an array of three": call(*ARRAY, b"cnumpy\nndarray\n", b")"),
    "an array without state": call(*ARRAY, b"cnumpy\nndarray\n", b")", b"C\1b"),
    "objects that are bytes": call(*ARRAY, b"cnumpy\nndarray\n", b")", b"C\1b")
                              + b"(K\1K\1\x85" + kind(b"U\2O8") + b"\x89C\1xtb",
    "a scalar of one": call(*SCALAR, kind()),
    "a scalar of three bytes": call(*SCALAR, kind(), b"C\3abc"),
    "a scalar of text": call(*SCALAR, b"U\2f4", b"C\4abcd"),
    "a buffer of three": call(*BUFFER, b"C\4abcd", kind(), ONE),
    "a buffer in another order": call(*BUFFER, b"C\4abcd", kind(), ONE, b"U\1A"),
    "a buffer of many dimensions": call(*BUFFER, b"C\4abcd", kind(), b"(" + b"K\1" * 65 + b"t", b"U\1C"),
    "a buffer that is a number": call(*BUFFER, b"K\1", kind(), ONE, b"U\1C"),
    "a buffer as wide text": call(*BUFFER, b"X\3\0\0\0\xe2\x82\xac", kind(b"U\2u1"), ONE, b"U\1C"),
    "a buffer in another code": call(*BUFFER, call("_codecs", "encode", b"U\4abcd", b"U\5utf-8"), kind(), ONE, b"U\1C"),
    "a type that is a number": call(*BUFFER, b"C\4abcd", kind(b"K\4"), ONE, b"U\1C"),
    "a type with items": call(*BUFFER, b"C\4abcd", kind() + b"K\1a", ONE, b"U\1C"),
    "a type with a short state": call(*BUFFER, b"C\4abcd", kind() + b"(K\3U\1<tb", ONE, b"U\1C"),
    "a type with fields": call(*BUFFER, b"C\4abcd", kind() + b"(K\3U\1<NU\1xNK\0K\0K\0tb", ONE, b"U\1C"),
}  # fmt: skip

# The same for a file of five pickles.
LEGACY = checkpoints.LEGACY
_HEADS: tuple[Any, ...] = (legacy.MAGIC, legacy.PROTOCOL, {})
PARTS = [pickle.dumps(x, 2) for x in _HEADS]


def stack(object: bytes = b"\x80\x02" + storage(b"ctorch\nFloatStorage\n", b"K\1") + b".",
          keys: bytes = pickle.dumps(["0"], 2), data: bytes = struct.pack("<qf", 1, 1.5)) -> bytes:  # fmt: skip
    return b"".join(PARTS) + object + keys + data


STACKS = {
    "magic": pickle.dumps(7, 2) + stack()[len(PARTS[0]) :],
    "protocol": PARTS[0] + pickle.dumps(7, 2) + stack()[len(PARTS[0] + PARTS[1]) :],
    "keys no list": stack(keys=pickle.dumps(7, 2)),
    "a key that is a number": stack(keys=pickle.dumps([0], 2)),
    "a key that is not named": stack(keys=pickle.dumps(["1"], 2)),
    "a key twice": stack(keys=pickle.dumps(["0", "0"], 2), data=struct.pack("<qfqf", 1, 1.5, 1, 1.5)),
    "too long": stack(data=struct.pack("<qf", 2, 1.5)),
    "negative": stack(data=struct.pack("<qf", -1, 1.5)),
}


NO_KEYS = stack(keys=pickle.dumps([], 2), data=b"")


def short(data: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(data)) + data


def checks() -> Iterator[Check]:
    frame = b"\x80\x04\x95\x63" + bytes(7) + b"N."
    for data, why in test_machine.BROKEN.values():
        yield partial(test_machine.test_broken_and_ambiguous_pickles_are_refused, data, why)
    for data in test_machine.ODD.values():
        yield partial(test_machine.test_what_a_value_does_not_have_is_not_done_but_recorded, data)
    for value in (*checkpoints.WRONG.values(), *ODD.values()):
        yield partial(left_out, value)
    for change in test_readers.BROKEN_ARRAYS.values():
        yield partial(array_left_out, change)
    for data, rule, words in checkpoints.HOSTILE.values():
        yield partial(hostile, data, rule, words)
    for make in test_readers.TARS.values():
        yield partial(refused, torch_tar.parse, make(), ".")
    for data in STACKS.values():
        yield partial(refused, partial(legacy.read, widths=torch_types.WIDTHS, budget=1 << 20), data, ".")
    yield partial(
        left_out, call(U, "_rebuild_tensor_v2", call("torch.storage", "_load_from_bytes", short(NO_KEYS)), *V2[1:])
    )
    yield from (
        window, odd_length, no_room, 
        partial(refused, lambda source: machine.Machine(source).run(), b"}(K\1u.", "without a value"),
        partial(refused, lambda source: machine.Machine(source).run(), frame, "ends inside a frame"),
        test_machine.test_unknown_protocols_are_unsupported, test_machine.test_marks_that_are_taken_back_cost_nothing,
        test_machine.test_keys_that_together_take_long_to_hash_are_a_bomb,
        checkpoints.test_laughs_and_cycles_end, test_readers.test_what_is_embedded_must_be_a_storage,
        partial(refused, pickles.parse, b"N." * 2000, "more than"), partial(refused, pickles.parse, b"", "empty"),
        partial(test_machine.test_a_line_without_end_is_not_held, b"I"),
        partial(test_machine.test_the_account_is_no_less_than_what_values_take, b"", b"]"),
    )  # fmt: skip
    yield test_lenient.test_a_computed_name_is_recorded
    for case in test_lenient.STOPS.values():
        yield partial(test_lenient.test_it_stops_where_no_unpickler_goes_on, *case)
    for code in (b"I", b"F"):
        yield partial(test_lenient.test_a_limit_of_ours_is_no_fault_of_the_file, code + b"1" * 5000 + b"\n.")


CHECKS = list(checks())
MODULES: tuple[ModuleType, ...] = (machine, state, steps, text_numbers, legacy, numpy_calls, torch_calls, torch_types)


def test_without_faults_all_is_green() -> None:
    assert [i for i, check in enumerate(CHECKS) if red(check)] == []


@pytest.mark.parametrize(("module", "guard"), guards(*MODULES))
def test_a_guard_that_is_not_there(module: ModuleType, guard: str) -> None:
    """What turns red may also hang: a second is for ever."""
    with _hurried():
        assert_needed(module, guard, CHECKS)


@contextmanager
def _hurried() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# A limit that is far higher lets through what it refuses.
LIMITS: dict[str, tuple[ModuleType, str, Check]] = {
    "digits": (text_numbers, "PICKLE_DIGITS", partial(test_machine.test_broken_and_ambiguous_pickles_are_refused,
                                                      *test_machine.BROKEN["many digits"])),
    "longs": (steps, "PICKLE_LONG", partial(test_machine.test_broken_and_ambiguous_pickles_are_refused,
                                            *test_machine.BROKEN["long of many bytes"])),
    "blobs": (state, "PICKLE_BLOB", test_machine.test_a_long_text_stays_in_the_source),
    "depth": (torch, "PICKLE_DEPTH", checkpoints.test_laughs_and_cycles_end),
    "pickles": (pickles, "PICKLES", partial(refused, pickles.parse, b"N." * 2000, "more than")),
    "dims": (torch_types, "DIMS", partial(left_out, checkpoints.WRONG["many dims"])),
    "dims of a tar": (torch_tar, "DIMS", partial(refused, torch_tar.parse, test_readers.tarred(
        tensors=test_readers._one(65, *([1] * 131))), "dimensions")),
    "expansion": (torch_entries, "EXPANDED", partial(left_out, call(
        U, "_rebuild_tensor_v2", storage(), b"K\0", b"J\xff\xff\xff\x7f\x85", b"K\0\x85", NO, HOOKS),
        "pickle.expanded")),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, limit, check = LIMITS[name]
    assert_seen(Fault(module, limit, 1 << 40, check), monkeypatch)
