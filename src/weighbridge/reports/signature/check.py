"""Checks a model against its signature: first who signed, then every file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from weighbridge.adapters.signing import certificates, ec_keys, keyless
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.options import Progress, flag
from weighbridge.reports.signature.bundle import PAYLOAD_TYPE, SignatureBundle, read_bundle
from weighbridge.reports.signature.manifest import SINGLE, Listing, SignedItem, SignedManifest, hash_files, list_files
from weighbridge.reports.signature.model import NAMED_BY, SignatureCheck, SignatureFault, SignatureReport
from weighbridge.reports.signature.options import SignatureCheckOptions
from weighbridge.reports.signature.sign import inner_names, within
from weighbridge.reports.signature.statement import read_statement


class _NotTheSigner(Exception):
    """The signature isn't the trusted signer's."""


def check_signature(model: Path, options: SignatureCheckOptions, progress: Progress | None) -> SignatureCheck:
    """Checks a model against the signature of `options`, whose signer is named. The files are compared only if the
    signature is the signer's."""
    assert options.signature is not None
    file = Path(options.signature)
    signer: str | None = None
    try:
        bundle = read_bundle(file)
        signer = _signer(bundle, options)
        manifest = read_statement(bundle.payload, bundle.path)
    except _NotTheSigner as error:
        fault = SignatureFault("signature/signer", str(error), file, "the files weren't compared: don't use the model")
    except FormatError as error:
        place = f"{error.field}: " if error.field else ""
        actual = "" if error.found is None else f" (found {error.found})"
        hint = error.hint or "ask the signer for the file again"
        fault = SignatureFault("signature/broken", f"{place}{error.reason}{actual}", file, hint)
    else:
        return compare_files(model, manifest, options, signer, progress)
    return SignatureCheck(SignatureReport(str(file), None, 0), (fault,))


def _signer(bundle: SignatureBundle, options: SignatureCheckOptions) -> str:
    """Returns the signer if it is the one that the options name; raises `_NotTheSigner` otherwise."""
    kind = next(k for k, names in NAMED_BY.items() if all(getattr(options, name) is not None for name in names))
    if bundle.kind != kind:
        needs = " and ".join(map(flag, NAMED_BY[bundle.kind]))
        raise _NotTheSigner(f"the signature is {_TITLES[bundle.kind]}, to be checked with {needs}")
    return _CHECKS[kind](bundle, options)


def _signed_by_key(bundle: SignatureBundle, options: SignatureCheckOptions) -> str:
    key = ec_keys.load_public_key(Path(str(options.key)))
    name = ec_keys.fingerprint(key)
    if bundle.hint and bundle.hint != name:
        raise _NotTheSigner(f"it was signed with another key: {bundle.hint[:64]}, not {name}")
    if not ec_keys.is_signed(key, bundle.signature, bundle.message):
        raise _NotTheSigner("the signature doesn't fit its content and the key")
    return f"key {name}"


def _signed_by_certificate(bundle: SignatureBundle, options: SignatureCheckOptions) -> str:
    roots = certificates.load_certificates(Path(str(options.certificate)))
    try:
        trusted = certificates.trusted_key(bundle.chain, roots, bundle.path)
    except FormatError as error:
        raise _NotTheSigner(error.reason) from None
    if options.identity not in trusted.names:
        raise _NotTheSigner(f"the signer is {', '.join(trusted.names[:4])}, not {options.identity}")
    if not ec_keys.is_signed(trusted.key, bundle.signature, bundle.message):
        raise _NotTheSigner("the signature doesn't fit its content and the certificate")
    return trusted.names[0]


def _signed_keyless(bundle: SignatureBundle, options: SignatureCheckOptions) -> str:
    identity, provider = str(options.identity), str(options.identity_provider)
    config = None if options.trust_config is None else Path(options.trust_config)
    try:
        kind, payload = keyless.verified_payload(
            bundle.raw, bundle.path, identity=identity, provider=provider, trust_config=config
        )
    except FormatError as error:
        raise _NotTheSigner(error.reason) from None
    if (kind, payload) != (PAYLOAD_TYPE, bundle.payload):
        raise FormatError("two readers disagree about its content", path=bundle.path)
    return f"{identity} ({provider})"


_TITLES = {"key": "a key's", "certificate": "a certificate's", "keyless": "keyless"}
_CHECKS = {"key": _signed_by_key, "certificate": _signed_by_certificate, "keyless": _signed_keyless}


def compare_files(
    model: Path, manifest: SignedManifest, options: SignatureCheckOptions, signer: str, progress: Progress | None
) -> SignatureCheck:
    """Compares every file of the model with the manifest."""
    file = Path(str(options.signature))
    if options.ignore and not model.is_dir():
        raise UsageError(f"--ignore applies to a folder, and {model} is a file")
    own_file = within(model, file) if model.is_dir() else ()
    left_out = {*manifest.ignored, *inner_names(options.ignore), *own_file}
    listing = list_files(model, left_out, options.allow_symlinks)
    signed = _by_file(manifest.items)
    present = {name: path for name, path in listing.files.items() if name in signed}
    actual = _by_file(hash_files(present, manifest.method, progress=progress))
    empty = {
        name for name, path in listing.files.items()
        if manifest.method.shard_size is not None and name not in signed and not path.stat().st_size
    }  # fmt: skip
    faults = [*differences(model, listing, signed, actual, empty)]
    unsigned = tuple(sorted({*listing.ignored, *empty} - {*own_file}))
    return SignatureCheck(SignatureReport(str(file), signer, len(signed), unsigned), tuple(faults))


def _by_file(items: tuple[SignedItem, ...]) -> dict[str, set[SignedItem]]:
    files: dict[str, set[SignedItem]] = {}
    for item in items:
        files.setdefault(item.name, set()).add(item)
    return files


def differences(
    model: Path, listing: Listing, signed: Mapping[str, set[SignedItem]], actual: Mapping[str, set[SignedItem]],
    empty: set[str],
) -> Iterator[SignatureFault]:  # fmt: skip
    for name in sorted(signed):
        path = model if name == SINGLE else model / name
        if name not in listing.files and name not in listing.refused:
            ignored = any(name == folder or name.startswith(f"{folder}/") for folder in listing.ignored)
            reason = "signed, but left out of the check" if ignored else "signed, but missing"
            yield SignatureFault("signature/missing", reason, path, None if ignored else "download the model again")
        elif name in listing.files and signed[name] != actual.get(name, set()):
            yield SignatureFault("signature/changed", "its bytes aren't those that were signed", path,
                                 "download it again")  # fmt: skip
    for name in sorted(listing.files.keys() - signed.keys() - empty):
        yield SignatureFault("signature/extra", "not signed", model if name == SINGLE else model / name,
                             "remove it, or leave it out: --ignore PATH")  # fmt: skip
    for name, reason in sorted(listing.refused.items()):
        hint = "follow links to files: --allow-symlinks" if reason == "a link" else "a signature can't cover it"
        yield SignatureFault(
            "signature/link", f"not compared: {reason}", model if name == SINGLE else model / name, hint
        )
