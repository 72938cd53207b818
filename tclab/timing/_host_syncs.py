"""Host-device synchronisations, kernels and allocations of a block of code, by stage and line of code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from tclab._display import Display, Shown, seconds_text
from tclab.timing._user_code import source_of, user_frame


class Staged(Protocol):
    """What knows the stage that a program is in: a ledger."""

    @property
    def current(self) -> str:
        """The stage."""


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


# Methods that give a tensor to Python: on a CPU the dispatcher sees nothing of them, or their parts alone.
_READS = ("cpu", "tolist", "__repr__")  # not numpy: it refuses a tensor on a device
_MOST = 10  # lines that are shown

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


@dataclass(repr=False)
class Syncs(Shown):
    """The host-device synchronisations that `syncs` counted; `print` it for the lines, the costliest first.

    **Arguments:**

    - `operations`: name of the operation → times that the host waited in it.
    - `places`: "file:line in function" of the user's innermost line → times. Where no line is the user's, the nearest
      one outside torch.
    - `seconds`: the same places → seconds in these operations; on a CPU they are not waiting.
    - `stages`: stage of the ledger → all its operations, counted; `other` outside stages.
    - `cuda`: one of these operations read a CUDA device. Otherwise nothing waited, and all of it is a forecast.
    """

    operations: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    stages: dict[str, OperationCounts] = field(default_factory=dict)
    cuda: bool = False

    @property
    def count(self) -> int:
        """Total number of times that the host waited."""
        return sum(self.operations.values())

    def ranked(self) -> list[tuple[str, int, float | None]]:
        """Return (place, times, seconds waited), the longest first.

        On a CPU, where nothing waits, seconds are `None`, and the place that would wait most often comes first.
        """
        if not self.cuda:
            return [(place, times, None) for place, times in self.places.most_common()]
        costs = sorted(self.seconds.items(), key=lambda item: -item[1])
        return [(place, self.places[place], seconds) for place, seconds in costs]

    def _display(self) -> Display:
        lines = [
            (seconds_text(seconds) if seconds is not None else "", str(times), *_place_texts(place))
            for place, times, seconds in self.ranked()[:_MOST]
        ]
        columns = ("waited", "times", "line", "code")
        if not self.cuda:
            note = "A forecast: nothing waits on a CPU. On a GPU the host would wait here, if the tensors are there."
            return Display(f"{self.count} waits predicted", columns[1:], [line[1:] for line in lines], [note])
        note = "Counting slows the host down, so the device has less left to do when it is waited for."
        return Display(f"the host waited {self.count} times", columns, lines, [note])


def _place_texts(place: str) -> tuple[str, str]:
    file, _, rest = place.rpartition(":")
    line = rest.partition(" ")[0]
    return (f"{Path(file).name}:{rest}", source_of(file, int(line))) if line.isdecimal() else (place, "")


def place_text(file: str, line: int, function: str) -> str:
    """Return the name of a place in `Syncs.places`."""
    return f"{file}:{line} in {function}"


def _caller() -> str:
    """Return the place of the user's innermost frame, or else of the innermost outside torch, PyG and this module."""
    frame = user_frame(sys._getframe(1))
    if frame is None:
        frame = sys._getframe(1)
        while frame is not None and _of_torch(frame.f_globals.get("__name__", "")):
            frame = frame.f_back
    if frame is None:
        return "unknown"
    return place_text(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


def _is_optimizer_step_count(tensor: Any) -> bool:
    """Return whether an optimizer of torch reads its count of steps, which stays on the CPU beside a GPU, too."""
    frame = sys._getframe(2) if getattr(getattr(tensor, "device", None), "type", "") == "cpu" else None
    while frame is not None and (module := frame.f_globals.get("__name__", "")).startswith("torch."):
        if (module, frame.f_code.co_name) == ("torch.optim.optimizer", "_get_value"):
            return True
        frame = frame.f_back
    return False


def _of_torch(module: str) -> bool:
    return module in ("torch", __name__) or module.startswith(("torch.", "torch_geometric."))


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
def syncs(ledger: Staged | None = None) -> Iterator[Syncs]:
    """Count where the host waits for the device or, on a CPU, where it would wait for a GPU.

    `with syncs() as counted: step()`, then `print(counted)`, `counted.count` and `counted.places`. It intercepts every
    operation that passes torch's dispatcher, backward included, and so slows the step down: do not count and time the
    same steps. `.cpu()`, `.tolist()` and a printed tensor count once each.

    **Arguments:**

    - `ledger`: the ledger whose open stage each operation counts for, in `counted.stages`.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    counted = Syncs()
    reading = False  # inside one of `_READS`: its parts are not counted again

    def of_stage() -> OperationCounts:
        return counted.stages.setdefault("other" if ledger is None else ledger.current, OperationCounts())

    def waited(name: str, call: Callable[[], Any], tensor: Any) -> Any:
        place = _caller()
        counted.operations[name] += 1
        counted.places[place] += 1
        of_stage().syncs += 1
        counted.cuda |= bool(getattr(tensor, "is_cuda", False))
        begin = perf_counter()
        try:
            return call()
        finally:
            counted.seconds[place] = counted.seconds.get(place, 0.0) + perf_counter() - begin

    class CountingMode(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = op._schema.name.removeprefix("aten::")
            counts = of_stage()
            if not reading and _waits(name, args, kwargs or {}) and not _is_optimizer_step_count(args[0]):
                source = args[1] if name == "copy_" else args[0]
                result = waited(name, lambda: op(*args, **(kwargs or {})), source)
            else:
                result = op(*args, **(kwargs or {}))
            counts.kernels += _computes(op, name)
            inputs = _storages([*args, *(kwargs or {}).values()])
            for address, size in _storages(result).items():
                if address not in inputs:
                    counts.allocations += 1
                    counts.allocated_bytes += size
            return result

    def reader(name: str) -> Any:
        read = getattr(torch.Tensor, name)

        def counting(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal reading
            if reading:
                return read(tensor, *args, **kwargs)
            reading = True
            try:
                return waited(name, lambda: read(tensor, *args, **kwargs), tensor)
            finally:
                reading = False

        return counting

    own = {name: vars(torch.Tensor)[name] for name in _READS if name in vars(torch.Tensor)}
    for name in _READS:
        setattr(torch.Tensor, name, reader(name))
    try:
        with CountingMode():
            yield counted
    finally:
        for name in _READS:
            if name in own:
                setattr(torch.Tensor, name, own[name])
            else:
                delattr(torch.Tensor, name)
