"""Counts on a CPU what a training step would launch on a GPU: operations that are neither views nor allocations.

Python is told that tensors lie on CUDA and takes its branches there, while torch computes on the CPU. An operation may
be more than one kernel, as a layer norm's backward is.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tclab.message_passing.kernels import _spmm

WITHOUT_KERNEL = ("empty", "new_empty", "empty_like", "new_empty_strided", "_unsafe_view", "sparse_compressed_tensor")


class _AsOnCuda(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.device.__get__:
            return torch.device("cuda")
        on_cpu = tree_map_only(torch.device, lambda device: torch.device("cpu"), (args, kwargs or {}))
        return func(*on_cpu[0], **on_cpu[1])


class KernelCount(TorchDispatchMode):
    """Counts what is run inside, by the names of operations, in `counted`."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, op.__name__.split(".")[0]
        if op is torch.ops.tclab.spmm.default:
            with self, _AsOnCuda():
                return _spmm._spmm._init_fn(*args)
        if op._can_decompose():  # below autograd it comes undecomposed
            with self:
                return op.decompose(*args, **kwargs)
        if op.namespace == "aten" and not op.is_view and name not in WITHOUT_KERNEL:
            self.counted[name] += 2 if name == "_sparse_addmm" else 1  # a copy of what it adds to comes first
        return op(*args, **kwargs)


def kernels(run: Any, *args: Any) -> Counter[str]:
    """Return how often a call runs each operation, if tensors lie on CUDA."""
    with KernelCount() as count, _AsOnCuda():
        run(*args)
    return count.counted
