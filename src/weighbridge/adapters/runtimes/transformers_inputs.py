"""The inputs of a model's matrix products, as transformers computes them with torch.

Products are seen where torch computes them, so a module's class doesn't matter: a linear layer, a matrix of a stack of
experts, a transposed one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.runtimes.transformers import TransformersRuntime
from weighbridge.base.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

#: A parameter's name, the matrix of its stack (None: it has one), and the rows that enter it.
Observe = Callable[[str, int | None, NDArray[np.float32]], None]


class LatentInputs(NamedTuple):
    """What latent attention multiplies per head if its up-projection is absorbed: `queries` without position [heads,
    tokens, columns], and `latents` that each head collected [heads, tokens, rank]."""

    queries: NDArray[np.float32]
    latents: NDArray[np.float32]


#: The name of the up-projection of keys and values, and the inputs of its parts.
ObserveLatent = Callable[[str, LatentInputs], None]


def _products(parameters: Iterator[tuple[str, torch.Tensor]], observe: Observe) -> Any:
    """A context in which the inputs of products with parameters are passed on."""
    import torch
    from torch.overrides import TorchFunctionMode

    places: dict[int, tuple[str, torch.Tensor]] = {}
    for name, parameter in parameters:
        places.setdefault(parameter.untyped_storage().data_ptr(), (name, parameter))
    kind = torch.Tensor  # product -> the positions of its rows and its weight among the arguments
    binary = (torch.nn.functional.linear, torch.matmul, kind.matmul, kind.__matmul__, torch.mm, kind.mm)
    products = {**dict.fromkeys(binary, (0, 1)), torch.addmm: (1, 2)}

    class Products(TorchFunctionMode):  # type: ignore[misc,unused-ignore]  # torch may be missing
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            positions = products.get(func)
            if positions is not None and len(args) > max(positions):
                x, weight = (args[position] for position in positions)
                if (found := places.get(weight.untyped_storage().data_ptr())) is not None:
                    name, whole = found
                    number = weight.storage_offset() // whole.stride(0) if whole.ndim > 2 else None
                    observe(name, number, x.detach().reshape(-1, x.shape[-1]).float().cpu().numpy())
            return func(*args, **(kwargs or {}))

    return Products()


class TransformersInputs(TransformersRuntime):
    """One loaded folder, in F32, on a GPU if torch has one."""

    def __init__(self, path: str) -> None:
        import torch

        try:
            super().__init__(path)
        except (OSError, ValueError, ImportError) as error:  # transformers raises nothing more specific
            raise UnsupportedError(f"transformers doesn't load {path}: {str(error).splitlines()[0]}") from None
        self._device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
        self._model.to(self._device)
        for module in self._model.modules():  # products of all experts at once would hide whose rows they are
            if hasattr(getattr(module, "config", None), "_experts_implementation"):
                module.config._experts_implementation = "eager"

    def run(self, ids: NDArray[np.int64], observe: Observe, observe_latent: ObserveLatent) -> None:
        """Runs one text [tokens]."""
        import torch

        hooks = list(self._latent_hooks(observe_latent))
        try:
            with torch.no_grad(), _products(self._model.named_parameters(), observe):
                self._model(torch.from_numpy(ids)[None].to(self._device), use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()

    def _latent_hooks(self, observe: ObserveLatent) -> Iterator[Any]:
        for name, module in self._model.named_modules():
            if not hasattr(module, "kv_b_proj"):
                continue
            seen: dict[str, torch.Tensor] = {}
            query = module.q_b_proj if getattr(module, "q_b_proj", None) is not None else module.q_proj
            for key, part in (("query", query), ("latent", module.kv_a_layernorm)):
                yield part.register_forward_hook(lambda _, __, out, key=key, seen=seen: seen.update({key: out}))

            def finish(module: Any, _: Any, out: Any, name: str = name, seen: Any = seen) -> None:
                scores = out[1][0]  # eager attention returns them: [heads, tokens, tokens]
                queries = seen["query"][0].unflatten(-1, (len(scores), -1)).transpose(0, 1)
                plain = queries[..., : module.qk_nope_head_dim]
                latents = scores.float() @ seen["latent"].reshape(scores.shape[1], -1).float()
                observe(f"{name}.kv_b_proj.weight", LatentInputs(plain.float().cpu().numpy(), latents.cpu().numpy()))

            yield module.register_forward_hook(finish)
