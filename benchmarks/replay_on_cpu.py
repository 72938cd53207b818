"""A stand-in for CUDA graphs on a CPU: it replays the same operations on the same tensors, with the same numbers.

What a graph would get wrong, it gets wrong: a size, a number or a branch that Python took from one batch. It does not
show how a graph's memory is reused, nor what CUDA forbids while it captures, but for waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tclab.training import _captured_step

_aten = torch.ops.aten
WAITS = (_aten._local_scalar_dense, _aten.nonzero, _aten._unique2, _aten.masked_select, _aten.equal)


class Replay(TorchDispatchMode):
    """Records each operation with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.ran = True  # a capture runs nothing, so the first replay is the recording itself

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.overloadpacket in WAITS:
            raise RuntimeError(f"{op} waits for the device, which no graph can")
        result = op(*args, **(kwargs or {}))
        self.calls.append((op, args, kwargs or {}, result))
        return result

    def pool(self) -> None:
        """Return the pool of memory, of which a CPU has none."""

    @torch.no_grad()
    def replay(self) -> None:
        """Run all operations again, into the results of the first time."""
        for op, args, kwargs, result in () if self.ran else self.calls:
            for old, new in zip(tree_leaves(result), tree_leaves(op(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        self.ran = False


@contextmanager
def recording(pool: None) -> Iterator[Replay]:
    """Record what is run inside."""
    with Replay() as graph:
        yield graph


@contextmanager
def captured_on_cpu() -> Iterator[None]:
    """Let steps be captured on the CPU inside."""
    _captured_step.GRAPHS["cpu"] = recording
    try:
        yield
    finally:
        del _captured_step.GRAPHS["cpu"]
