"""A drop-in for the `safetensors` package: the same names, arguments, results and bytes, over this package's parser and
writer. `import weighbridge.safetensors as safetensors` is the only change.

    from weighbridge.safetensors import safe_open, SafetensorError
    from weighbridge.safetensors.torch import load_file, save_file, save_model, load_model
    from weighbridge.safetensors.numpy import load, save

The reference's own tests pass against it (docs/peers-safetensors.md). Tensors of torch share the file's pages.
"""

from __future__ import annotations

from weighbridge.safetensors.core import SafetensorError, TensorSpec, deserialize, serialize, serialize_file
from weighbridge.safetensors.reading import _safe_open_handle, safe_open

#: The version of the reference whose interface this is.
__version__ = "0.8.0"
__all__ = [
    "SafetensorError", "TensorSpec", "__version__", "_safe_open_handle", "deserialize", "safe_open", "serialize",
    "serialize_file",
]  # fmt: skip
