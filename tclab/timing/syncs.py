"""Where the host waits for the device."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# Operations whose result, or the size of whose result, the host must know before it goes on.
_ALWAYS = frozenset(
    {
        "_local_scalar_dense",  # .item(), bool(), int(), float()
        "nonzero",
        "masked_select",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "bincount",
        "equal",
    }
)


@dataclass
class Syncs:
    """What was found: how often the host waited, by operation and by line of code.

    **Arguments:**

    - `operations`: name of the operation → times.
    - `places`: "file:line in function" of the caller nearest to the operation → times.
    """

    operations: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How often the host waited."""
        return sum(self.operations.values())


def _caller() -> str:
    """Return the innermost line that is neither torch's nor this module's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch.", "torch_geometric.")) and name not in ("torch", __name__):
            return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "unknown"


def _waits(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    import torch

    if name in _ALWAYS:
        return True
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
        one_value = name != "index" and args[2].numel() == 1  # that is a masked fill
        return bool(masks) and not one_value
    if name in ("_to_copy", "copy_"):
        source = args[1] if name == "copy_" else args[0]
        target = args[0].device if name == "copy_" else torch.device(kwargs.get("device") or source.device)
        return bool(source.device.type == "cuda" and target.type == "cpu")
    return False


@contextmanager
def syncs() -> Iterator[Syncs]:
    """Count where the host waits for the device, or, on a CPU, where it would on a GPU.

    `with syncs() as found: step()`, then `found.count` and `found.places`. It looks at every operation that
    passes torch's dispatcher, backward included, so it slows the step down: count apart from timing. Values
    read without the dispatcher are not seen: `.tolist()` and `.numpy()` of a CPU tensor.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    found = Syncs()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = op._schema.name.removeprefix("aten::")
            if _waits(name, args, kwargs or {}):
                found.operations[name] += 1
                found.places[_caller()] += 1
            return op(*args, **(kwargs or {}))

    with Watch():
        yield found
