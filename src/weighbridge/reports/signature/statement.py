"""The in-toto statement of a signature: a manifest as JSON. Writes that of model_signing 1.1.1, and reads it strictly.

`subject.digest` is the SHA-256 over the digests of all resources, in their order. Nothing in a statement is used as a
path: names are compared with those of the model's files. Names that would be another file for a tool that does are
refused all the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import SIGNED_FILES
from weighbridge.reports.signature.bundle import strict_json
from weighbridge.reports.signature.manifest import HASH_TYPES, SINGLE, HashMethod, SignedItem, SignedManifest

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://model_signing/signature/v1.0"
# The predicate of model_signing 0.2.
_OLD_PREDICATE: Final = "https://model_signing/Digests/v0.1"
_DIGITS: Final = {"sha256": 64, "blake2b": 128, "blake3": 64}
_SHARD: Final = re.compile(r"(.+):(\d{1,19}):(\d{1,19})", re.DOTALL | re.ASCII)
# A drive, a network share.
_WINDOWS: Final = re.compile(r"[A-Za-z]:|[\\/]{2}")
_HEX: Final = re.compile(r"[0-9a-f]+")


class _Resource(msgspec.Struct):
    name: str
    algorithm: str
    digest: str


class _Serialization(msgspec.Struct):
    method: str
    hash_type: str
    allow_symlinks: bool = False
    shard_size: int | float | None = None
    ignore_paths: list[str] = []


class _Predicate(msgspec.Struct):
    serialization: _Serialization
    resources: list[_Resource]


class _Subject(msgspec.Struct):
    name: str
    digest: dict[str, str]


class _Statement(msgspec.Struct):
    type: str = msgspec.field(name="_type")
    subject: list[_Subject]
    predicateType: str
    predicate: _Predicate


class _Kind(msgspec.Struct):
    type: str = msgspec.field(name="_type")
    predicateType: str


def root_digest(items: Iterable[SignedItem]) -> str:
    """Returns the digest over all digests."""
    return hashlib.sha256(b"".join(bytes.fromhex(item.digest) for item in items)).hexdigest()


def write_statement(manifest: SignedManifest) -> bytes:
    """Returns the statement: that of model_signing, whose keys within the predicate have another order in each run."""
    serialization: dict[str, Any] = {
        "method": "files" if manifest.method.shard_size is None else "shards",
        "hash_type": manifest.method.hash_type,
    }
    if manifest.method.shard_size is not None:
        serialization["shard_size"] = manifest.method.shard_size
    serialization["allow_symlinks"] = manifest.allow_symlinks
    if manifest.ignored:
        serialization["ignore_paths"] = list(manifest.ignored)
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": manifest.model, "digest": {"sha256": root_digest(manifest.items)}}],
        "predicateType": PREDICATE,
        "predicate": {
            "serialization": serialization,
            "resources": [{"name": i.identifier, "algorithm": i.algorithm, "digest": i.digest} for i in manifest.items],
        },
    }
    return json.dumps(statement, indent=2).encode()


def read_statement(payload: bytes, path: str) -> SignedManifest:
    """Reads a statement. `path`: the signature, for errors. Raises FormatError with the place of the fault."""
    kind = strict_json(payload, path, _Kind)
    if kind.type != STATEMENT:
        _fail(path, "_type", "not an in-toto statement", kind.type)
    if kind.predicateType != PREDICATE:
        old = kind.predicateType == _OLD_PREDICATE
        hint = "it is of model_signing 0.2: sign the model again" if old else "is it the signature of a model?"
        raise FormatError(
            "not the statement of a model's signature",
            path=path,
            field="predicateType",
            found=repr(kind.predicateType)[:200],
            hint=hint,
        )
    statement = strict_json(payload, path, _Statement)
    method = read_method(statement.predicate.serialization, path)
    if len(statement.predicate.resources) > SIGNED_FILES:
        _fail(path, "predicate.resources", f"more than {SIGNED_FILES:,} resources")
    check_keys(payload, path)
    items = tuple(read_item(r, n, method, path) for n, r in enumerate(statement.predicate.resources))
    check_items(items, path)
    if len(statement.subject) != 1:
        _fail(path, "subject", "one subject is required", len(statement.subject))
    if statement.subject[0].digest.get("sha256") != root_digest(items):
        _fail(path, "subject[0].digest.sha256", "it isn't the digest of the resources")
    ignored = statement.predicate.serialization.ignore_paths
    for n, name in enumerate(ignored):
        if fault := name_fault(name):
            _fail(path, f"predicate.serialization.ignore_paths[{n}]", fault, name)
    allowed = statement.predicate.serialization.allow_symlinks
    return SignedManifest(statement.subject[0].name, items, method, allowed, tuple(ignored))


def check_keys(payload: bytes, path: str) -> None:
    """Raises FormatError if a key occurs twice in one object: readers differ in which of them they take."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) != len({key for key, _ in pairs}):
            key, times = Counter(key for key, _ in pairs).most_common(1)[0]
            _fail(path, key[:200], "the key occurs more than once in one object", times)

    try:
        json.loads(payload, object_pairs_hook=check)
    except (ValueError, RecursionError) as error:  # what this reader refuses: deep nesting, numbers of 4,300 digits
        raise FormatError(f"invalid JSON: {error}", path=path) from None


def read_method(written: _Serialization, path: str) -> HashMethod:
    place = "predicate.serialization"
    if written.hash_type not in HASH_TYPES:
        _fail(path, f"{place}.hash_type", "unknown digest", written.hash_type)
    if written.method == "files":
        return HashMethod(written.hash_type)
    if written.method != "shards":
        _fail(path, f"{place}.method", "unknown method", written.method)
    size = written.shard_size
    if size is None or not 1 <= size < 1 << 62 or size != int(size):  # protobuf writes any number as a float
        _fail(path, f"{place}.shard_size", "not a size", size)
    return HashMethod(written.hash_type, int(size))


def read_item(resource: _Resource, number: int, method: HashMethod, path: str) -> SignedItem:
    place = f"predicate.resources[{number}]"
    name, start, end = resource.name, 0, None
    if method.shard_size is not None:
        match = _SHARD.fullmatch(name)
        if match is None:
            _fail(path, f"{place}.name", "not FILE:START:END", name)
        name, start, end = match[1], int(match[2]), int(match[3])
        if not 0 < end - start <= method.shard_size:
            _fail(path, f"{place}.name", f"not a shard of at most {method.shard_size:,} bytes", resource.name)
    if name != SINGLE and (fault := name_fault(name)):
        _fail(path, f"{place}.name", fault, name)
    if resource.algorithm != method.algorithm:
        _fail(path, f"{place}.algorithm", f"not {method.algorithm}", resource.algorithm)
    digits = _DIGITS[HASH_TYPES[method.hash_type]]
    if len(resource.digest) != digits or not _HEX.fullmatch(resource.digest):
        _fail(path, f"{place}.digest", f"not {digits} hexadecimal digits", resource.digest[:200])
    return SignedItem(name, resource.algorithm, resource.digest, start, end)


def check_items(items: tuple[SignedItem, ...], path: str) -> None:
    """Raises FormatError for a repeated name, and for a single file among others."""
    seen: set[str] = set()
    for number, item in enumerate(items):
        if item.identifier in seen:
            _fail(path, f"predicate.resources[{number}].name", "the name occurs twice", item.identifier)
        seen.add(item.identifier)
    if not items:
        _fail(path, "predicate.resources", "it lists no file")
    names = {item.name for item in items}
    if SINGLE in names and len(names) > 1:
        _fail(path, "predicate.resources", "a model of one file can't have others", SINGLE)


def name_fault(name: str) -> str:
    """Why a name can't be that of a file in the model; empty if it can."""
    parts = name.split("/")
    if name.startswith("/") or _WINDOWS.match(name):
        return "an absolute path"
    if ".." in parts or ".." in name.split("\\"):
        return "a path that leaves the model"
    if not name or "\0" in name or any(part in ("", ".") for part in parts):
        return "not a plain relative path"
    return ""


def _fail(path: str, field: str, reason: str, value: object = None) -> NoReturn:
    shown = None if value is None else repr(value)[:200]
    raise FormatError(reason, path=path, field=field, found=shown)
