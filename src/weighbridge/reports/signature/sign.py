"""Signs a model: `wb sign`.

sign(model, key="key.pem") -> SignReport      hashes every file, signs the list, writes model.sig
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from weighbridge.adapters.signing import certificates, ec_keys, keyless
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.limits import SIGNED_FILES
from weighbridge.base.options import accepting
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.io.location import check_local, path_text
from weighbridge.io.sink import check_target, write_file
from weighbridge.models.model import data_elsewhere
from weighbridge.reports.signature.bundle import signed_message, write_bundle
from weighbridge.reports.signature.manifest import (
    GIT_PATHS,
    HashMethod,
    Listing,
    SignedManifest,
    hash_files,
    list_files,
)
from weighbridge.reports.signature.options import SignOptions
from weighbridge.reports.signature.statement import name_fault, root_digest, write_statement

DEFAULT_NAME: Final = "model.sig"


@dataclass(frozen=True, slots=True)
class SignReport:
    """`digest`: over the digests of all files. `signer`: the key's fingerprint, the certificate's subject, or
    "keyless". `ignored`: files and folders in the model that aren't signed."""

    path: str
    signature: str
    signer: str
    files: int
    nbytes: int
    digest: str
    ignored: tuple[str, ...]
    schema: str = "weighbridge/sign/1"

    def __repr__(self) -> str:
        return f"<SignReport {self.path}: {plural(self.files, 'file')}, signed by {self.signer}>"


@accepting(SignOptions)
def sign(model: str | os.PathLike[str], options: SignOptions) -> SignReport:
    """Signs all files of a model, by the format OpenSSF Model Signing 1.0. Raises RefusedError for a file that can't be
    signed, or an existing signature without `overwrite`."""
    check_signer(options)
    path, target = Path(model), signature_path(model, options)
    check_target(target, overwrite=options.overwrite, folder=False)
    signer = None if options.key is None else _KeySigner(options)
    listing, ignored = files_to_sign(path, options)
    nbytes = sum(file.stat().st_size for file in listing.files.values())
    name = path.resolve().name if path.name in ("", "..") else path.name  # as model_signing
    method = HashMethod(shard_size=options.shard_size)
    items = hash_files(listing.files, method, jobs=options.jobs, progress=options.progress)
    manifest = SignedManifest(name, items, method, options.allow_symlinks, ignored)
    statement = write_statement(manifest)
    config = None if options.trust_config is None else Path(options.trust_config)
    bundle = keyless.sign(statement, config) if signer is None else signer.bundle(statement)
    write_file(target, bundle, overwrite=options.overwrite)
    return SignReport(
        path_text(model),
        str(target),
        signer.name if signer else "keyless",
        len(listing.files),
        nbytes,
        root_digest(items),
        tuple(listing.ignored),
    )


def check_signer(options: SignOptions) -> None:
    """Raises UsageError unless the options name one signer."""
    if (options.key is None) != options.keyless:
        hint = "sign with a key, --key FILE, or by your identity, --keyless"
        raise UsageError("the signer must be named" if options.key is None else "a key isn't keyless", hint=hint)
    for name, value, needs in (
        ("--certificate", options.certificate, options.key), ("--trust-config", options.trust_config, options.keyless),
        ("--password", options.password, options.key),
    ):  # fmt: skip
        if value is not None and not needs:
            raise UsageError(f"{name} doesn't apply to {'a key' if options.key is not None else 'keyless signatures'}")


def signature_path(model: str | os.PathLike[str], options: SignOptions) -> Path:
    """Returns the signature's file: as given, or model.sig in the folder or next to the file."""
    check_local(model)
    if options.signature is not None:
        check_local(options.signature)
        return Path(options.signature)
    path = Path(model)
    return (path if path.is_dir() else path.parent) / DEFAULT_NAME


def files_to_sign(path: Path, options: SignOptions) -> tuple[Listing, tuple[str, ...]]:
    """Returns the files of a model, and the paths that its signature declares as ignored. Raises RefusedError if a file
    can't be signed."""
    path.stat()  # raises the system's own error
    if options.ignore and not path.is_dir():
        raise UsageError(f"--ignore applies to a folder, and {path} is a file")
    if others := data_elsewhere(path):
        raise UsageError(f"{path} has its data in other files: {', '.join(file.name for file in others[:4])}",
                         hint=f"sign its folder: wb sign {shlex.quote(str(path.parent))}")  # fmt: skip
    own_file = within(path, signature_path(path, options)) if path.is_dir() else ()
    ignored = tuple(sorted({*GIT_PATHS, *inner_names(options.ignore), *own_file}))
    listing = list_files(path, ignored, options.allow_symlinks)
    listing = replace(listing, ignored=tuple(name for name in listing.ignored if name not in own_file))
    refused = listing.refused
    if refused:
        name, reason = next(iter(refused.items()))
        more = f", and {plural(len(refused) - 1, 'more such entry')}" if len(refused) > 1 else ""
        links = any(value == "a link" for value in refused.values())
        option = "--allow-symlinks" if links else "--ignore PATH"
        raise RefusedError(f"{path / name if name != '.' else path} is {reason}{more}", option=option)
    if options.shard_size is not None:
        listing = check_shards(listing, options.shard_size)
    if not listing.files:
        raise UsageError(f"{path} has no files to sign")
    return listing, ignored


def check_shards(listing: Listing, size: int) -> Listing:
    """Returns the files of which the method `shards` lists parts: an empty one has none. Raises UsageError for a name
    that the method can't express, and for too many parts."""
    sizes = {name: file.stat().st_size for name, file in listing.files.items()}
    if colon := next((name for name in sizes if ":" in name), None):
        raise UsageError(f"--shard-size can't sign {colon}, whose name has a colon", hint="sign whole files")
    if sum(-(-nbytes // size) for nbytes in sizes.values()) > SIGNED_FILES:
        raise UsageError(f"--shard-size {size} makes more than {SIGNED_FILES:,} parts", hint="choose larger parts")
    empty = [name for name, nbytes in sizes.items() if not nbytes]
    files = {name: file for name, file in listing.files.items() if sizes[name]}
    return replace(listing, files=files, ignored=tuple(sorted((*listing.ignored, *empty))))


def inner_names(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the values of `ignore` as names in a manifest. Raises UsageError for a path out of the model."""
    inner = tuple(PurePath(name).as_posix() for name in ([names] if isinstance(names, str) else names))
    for name in inner:
        if fault := name_fault(name):
            raise UsageError(f"--ignore {name}: {fault}", hint="name a path relative to the model")
    return inner


def within(path: Path, file: Path) -> tuple[str, ...]:
    """Returns the name of `file` in the folder `path`; empty if it is elsewhere."""
    folder, place = path.resolve(), file.parent.resolve() / file.name
    return (place.relative_to(folder).as_posix(),) if place != folder and place.is_relative_to(folder) else ()


class _KeySigner:
    """Signs with a private key, which is read before anything is hashed."""

    def __init__(self, options: SignOptions) -> None:
        assert options.key is not None
        self._key = ec_keys.load_private_key(Path(options.key), options.password)
        self._chain: tuple[bytes, ...] = ()
        public = self._key.public_key()
        self.name = ec_keys.fingerprint(public)
        if options.certificate is not None:
            chain = certificates.load_certificates(Path(options.certificate))
            if chain[0].public_key() != public:
                hint = "the signer's certificate comes first in the file"
                raise UsageError(
                    f"the certificate in {options.certificate} has another key than {options.key}", hint=hint
                )
            self._chain = tuple(map(certificates.to_der, chain))
            self.name = certificates.names_of(chain[0])[0]

    def bundle(self, statement: bytes) -> bytes:
        """Returns the file of the signature."""
        signature = ec_keys.sign(self._key, signed_message(statement))
        return write_bundle(statement, signature, hint=self.name, chain=self._chain)
