"""Scans ONNX models for tensors whose data is in other files. The graph's operators aren't read (`unsupported.py`).

onnx sets every key of a tensor's external data as an attribute of a Python object (onnx/external_data_helper.py), and
opens the file that `location` names.
"""

from __future__ import annotations

from collections.abc import Iterator

from weighbridge.reports.scan.archive.streams import leads_out
from weighbridge.reports.scan.model import Part, Piece, escape


def scan(part: Part) -> Iterator[Piece]:
    """Scans the external data of an ONNX model's tensors."""
    from weighbridge.containers.frameworks.onnx import EXTERNAL_KEYS, external_data  # late: few files are ONNX
    from weighbridge.containers.protobuf import Messages

    for key, value in external_data(Messages(part.source)):
        if key not in EXTERNAL_KEYS:
            yield part.finding("onnx/external-key", f"external data has the key {escape(key)!r}")
        if key == "basepath" or (key == "location" and (leads_out(value) or "://" in value or value[1:2] == ":")):
            message = f"tensor data in {escape(value)}"
            yield part.finding("onnx/outside", message, consequence="Loaders read that file as weights.")
