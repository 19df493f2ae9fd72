"""Invariant: any bytes give every format tensors that lie in the file, or an error; regions cover the file."""

from __future__ import annotations

import sys

import harness
from tests.conformance.samples import samples
from tests.conformance.test_formats import any_bytes
from tests.plugins import all_toys

from weighbridge.containers import every
from weighbridge.containers.sniff.detect import sniff
from weighbridge.containers.sniff.probe import Probe
from weighbridge.io.source import BytesSource

context = all_toys


def target(data: bytes) -> None:
    found = sniff(BytesSource(data)).format
    for format in every():
        if format.readable and (format.name == found or format.recognise(Probe(BytesSource(data)))):
            any_bytes(format, data)


def seeds() -> list[bytes]:
    return [data for format in every() if format.readable for data in samples(format)]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds, context=context))
