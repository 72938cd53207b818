"""Where the host waits for the device, and what each stage asks of it: kernels and memory."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tclab.timing.ledger import Ledger

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


# Memory is set aside for them, and nothing is computed.
_NO_KERNEL = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "lift_fresh"}
)


@dataclass
class Demand:
    """What one stage asked of the device.

    **Arguments:**

    - `syncs`: times that the host waited.
    - `kernels`: operations that compute something; views and empty tensors do not. One may launch several kernels.
    - `allocations`, `allocated_bytes`: results with memory of their own. What an operation needs while it runs is
      not seen.
    """

    syncs: int = 0
    kernels: int = 0
    allocations: int = 0
    allocated_bytes: int = 0


@dataclass
class Syncs:
    """What was found: how often the host waited, by operation, by line of code, and by stage.

    **Arguments:**

    - `operations`: name of the operation → times.
    - `places`: "file:line in function" of the caller nearest to the operation → times.
    - `stages`: stage of the ledger that was given → what it asked of the device; `other` outside stages.
    """

    operations: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    stages: dict[str, Demand] = field(default_factory=dict)

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


def _computes(op: Any, name: str) -> bool:
    if name in _NO_KERNEL:
        return False
    returns = op._schema.returns
    views = [r.alias_info is not None and not r.alias_info.is_write for r in returns]
    return not (views and all(views))


def _memory_of(found: Any) -> dict[int, int]:
    """Return address → bytes of the memory behind a tensor, or behind the tensors of a list."""
    import torch

    if isinstance(found, (list, tuple)):
        return {address: size for item in found for address, size in _memory_of(item).items()}
    if not isinstance(found, torch.Tensor):
        return {}
    if found.layout is not torch.strided:
        parts = (
            (found.crow_indices(), found.col_indices(), found.values()) if found.layout is torch.sparse_csr else ()
        )
        return _memory_of(parts)
    storage = found.untyped_storage()
    return {storage.data_ptr(): storage.nbytes()} if storage.nbytes() else {}


@contextmanager
def syncs(ledger: Ledger | None = None) -> Iterator[Syncs]:
    """Count where the host waits for the device, or, on a CPU, where it would on a GPU.

    `with syncs() as found: step()`, then `found.count` and `found.places`. It looks at every operation that
    passes torch's dispatcher, backward included, so it slows the step down: count apart from timing. Values
    read without the dispatcher are not seen: `.tolist()` and `.numpy()` of a CPU tensor.

    **Arguments:**

    - `ledger`: whose open stage each operation is entered on, in `found.stages`.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    found = Syncs()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = op._schema.name.removeprefix("aten::")
            demand = found.stages.setdefault("other" if ledger is None else ledger.current, Demand())
            if _waits(name, args, kwargs or {}):
                found.operations[name] += 1
                found.places[_caller()] += 1
                demand.syncs += 1
            demand.kernels += _computes(op, name)
            result = op(*args, **(kwargs or {}))
            given = _memory_of([*args, *(kwargs or {}).values()])
            for address, size in _memory_of(result).items():
                if address not in given:
                    demand.allocations += 1
                    demand.allocated_bytes += size
            return result

    with Watch():
        yield found
