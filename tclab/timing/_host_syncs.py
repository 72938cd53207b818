"""Host-device synchronisations, kernels and allocations of a block of code, by stage and line of code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tclab.timing._ledger import Ledger

# Operations whose result, or whose result's size, the host needs before it continues.
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


# Operations that allocate memory and compute nothing.
_NO_KERNEL = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "lift_fresh"}
)


@dataclass
class OperationCounts:
    """The operations of one stage, counted.

    **Arguments:**

    - `syncs`: times that the host waited for the device.
    - `kernels`: operations that compute something, so neither views nor empty tensors; one may launch several
      kernels.
    - `allocations`: results in newly allocated memory. An operation's workspace is not counted.
    - `allocated_bytes`: bytes of these results.
    """

    syncs: int = 0
    kernels: int = 0
    allocations: int = 0
    allocated_bytes: int = 0


@dataclass
class Syncs:
    """The host-device synchronisations that `syncs` counted.

    **Arguments:**

    - `operations`: name of the operation → times that the host waited in it.
    - `places`: "file:line in function" of the operation's nearest caller outside torch → times.
    - `stages`: stage of the ledger → all its operations, counted; `other` outside stages.
    """

    operations: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    stages: dict[str, OperationCounts] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Total number of times that the host waited."""
        return sum(self.operations.values())


def _caller() -> str:
    """Return "file:line in function" of the innermost frame outside torch, PyG and this module."""
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
        one_value = name != "index" and args[2].numel() == 1  # a masked fill, which does not wait
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


def _storages(value: Any) -> dict[int, int]:
    """Return address → bytes of the storages of a tensor, or of the tensors of a list."""
    import torch

    if isinstance(value, (list, tuple)):
        return {address: size for item in value for address, size in _storages(item).items()}
    if not isinstance(value, torch.Tensor):
        return {}
    if value.layout is not torch.strided:
        parts = (value.crow_indices(), value.col_indices(), value.values()) if value.layout is torch.sparse_csr else ()
        return _storages(parts)
    storage = value.untyped_storage()
    return {storage.data_ptr(): storage.nbytes()} if storage.nbytes() else {}


@contextmanager
def syncs(ledger: Ledger | None = None) -> Iterator[Syncs]:
    """Count where the host waits for the device or, on a CPU, where it would wait for a GPU.

    `with syncs() as counted: step()`, then `counted.count` and `counted.places`. It intercepts every operation that
    passes torch's dispatcher, backward included, and so slows the step down: do not count and time the same steps.
    Reads that bypass the dispatcher are not counted: `.tolist()` and `.numpy()` of a CPU tensor.

    **Arguments:**

    - `ledger`: the ledger whose open stage each operation counts for, in `counted.stages`.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    counted = Syncs()

    class CountingMode(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = op._schema.name.removeprefix("aten::")
            counts = counted.stages.setdefault("other" if ledger is None else ledger.current, OperationCounts())
            if _waits(name, args, kwargs or {}):
                counted.operations[name] += 1
                counted.places[_caller()] += 1
                counts.syncs += 1
            counts.kernels += _computes(op, name)
            result = op(*args, **(kwargs or {}))
            inputs = _storages([*args, *(kwargs or {}).values()])
            for address, size in _storages(result).items():
                if address not in inputs:
                    counts.allocations += 1
                    counts.allocated_bytes += size
            return result

    with CountingMode():
        yield counted
