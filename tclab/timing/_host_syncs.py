"""Host-device synchronisations of a block of code, by stage and line of code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from tclab._display import Display, Shown, counted, seconds_text
from tclab.timing._ledger import Ledger
from tclab.timing._user_code import source_of, user_frame

_ALWAYS = frozenset(  # operations whose result, or whose result's size, the host needs before it continues
    ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
     "unique_dim_consecutive", "bincount", "equal", "allclose",
     # of torch.linalg, whose documentation says so
     "_linalg_check_errors", "_linalg_eigh", "linalg_eig", "linalg_eigvals", "_linalg_eigvals", "_linalg_svd",
     "linalg_pinv",
     # of torch.sparse, which torch's own sync debug mode leaves out: how many entries are left
     "_coalesce", "_sparse_sparse_matmul")
)  # fmt: skip

# Operations that first coalesce a sparse tensor that is not.
_COALESCING = frozenset(("mm", "addmm", "_sparse_addmm", "_sparse_sum", "_sparse_softmax", "_sparse_log_softmax"))
_READS = ("cpu", "tolist", "__repr__")  # methods that give a tensor to Python; not numpy: it refuses a device's
_MOST = 10  # lines that are shown


class Wait(NamedTuple):
    """One time that the host waited for a device or, on a CPU, would wait for one."""

    operation: str
    place: str  # "file:line in function" of the user's innermost line, or the nearest outside torch
    stage: str
    cuda: bool  # it read a CUDA device
    seconds: float  # in the operation


@dataclass(repr=False)
class Syncs(Shown):
    """The host-device synchronisations that `syncs` counted; `print` it for the lines, the costliest first.

    **Arguments:**

    - `waits`: each of them. Where one read a CUDA device, only those that did; otherwise nothing waited, and all of
      them are a forecast: `x.nonzero()` on a CPU counts, since the host would wait if `x` were on a GPU.
    """

    waits: list[Wait] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Total number of times that the host waited."""
        return len(self.waits)

    @property
    def cuda(self) -> bool:
        """Whether the host waited for a CUDA device; otherwise all of it is a forecast."""
        return any(wait.cuda for wait in self.waits)

    @property
    def places(self) -> Counter[str]:
        """Place, as "file:line in function" → times that the host waited there."""
        return Counter(wait.place for wait in self.waits)

    @property
    def stages(self) -> Counter[str]:
        """Stage of the ledger → times that the host waited in it."""
        return Counter(wait.stage for wait in self.waits)

    def ranked(self) -> list[tuple[str, int, float | None]]:
        """Return (place, times, seconds waited), the longest first.

        On a CPU, where nothing waits, seconds are `None`, and the place that would wait most often comes first.
        """
        places, cuda = self.places, self.cuda
        seconds = {at: sum(wait.seconds for wait in self.waits if wait.place == at) for at in places}
        order = sorted(places, key=lambda at: seconds[at] if cuda else places[at], reverse=True)
        return [(at, places[at], seconds[at] if cuda else None) for at in order]

    def _display(self) -> Display:
        lines = []
        for place, times, seconds in self.ranked()[:_MOST]:
            file, _, rest = place.rpartition(":")
            waited, line = "" if seconds is None else seconds_text(seconds), f"{Path(file).name}:{rest}"
            lines.append((waited, str(times), line, source_of(file, int(rest.partition(" ")[0]))))
        title = f"{counted(self.count, 'wait')} predicted"
        note = "A forecast: nothing waits on a CPU. On a GPU the host would wait here, if the tensors are there."
        if self.cuda:
            title = f"the host waited {counted(self.count, 'time')}"
            note = "Counting slows the host down, so the device has less left to do when it is waited for."
        return Display(title, ("waited", "times", "line", "code"), lines, [note])


def _place() -> str | None:
    """Return the place of the user's innermost frame, or else of the innermost outside torch and this module.

    `None` where an optimizer of torch reads its count of steps, which stays on the CPU beside a GPU, too.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and (module := frame.f_globals.get("__name__", "")).startswith(("torch", __name__)):
        if (module, frame.f_code.co_name) == ("torch.optim.optimizer", "_get_value"):
            return None
        frame = frame.f_back
    frame = user_frame(frame) or frame
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def _waits(name: str, overload: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """Return whether an operation waits for a CUDA device; false where it would, `None` if it waits for nothing."""
    import torch

    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    sparse = [each for each in tensors if each.layout is torch.sparse_coo]
    unsorted = not all(each.is_coalesced() for each in sparse)
    if name in ("copy_", "_to_copy"):  # a copy between host and device, which is not asked to go on beside the host
        to = tensors[0].device if name == "copy_" else torch.device(kwargs.get("device") or tensors[0].device)
        between = {to.type, tensors[-1].device.type} == {"cpu", "cuda"}
        return True if between and not (args[2:3] == (True,) or kwargs.get("non_blocking")) else None
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        masked = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        waits = masked and (name == "index" or args[2].numel() != 1)  # a masked fill with one value does not wait
    elif name.startswith("_to_sparse"):
        waits = tensors[0].layout is torch.strided or unsorted
    else:
        waits = name in _ALWAYS or bool(kwargs.get("check_errors"))
        waits |= name == "repeat_interleave" and kwargs.get("output_size") is None
        waits |= name == "sparse_compressed_tensor" and overload == "comp_plain_value"  # without size
        waits |= name == "normal" and overload.endswith("_Tensor")  # is any deviation below 0?
        waits |= name == "histc" and args[2:] in ((), (0, 0))  # between which values?
        waits |= name == "mul" and len(sparse) == 2
        waits |= name in _COALESCING and unsorted
    return any(each.is_cuda for each in tensors) if waits else None


def _reads(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a function gives values to Python, or takes some from it, in parts that are not waits by name."""
    if name == "sparse_coo_tensor":  # the size that is not given is the largest index
        return len(args) < 3 and "size" not in kwargs
    if name in ("__getitem__", "__setitem__"):  # a list of indices is copied to the device
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(each, list) for each in index)
    return name in _READS


@contextmanager
def syncs(ledger: Ledger | None = None) -> Iterator[Syncs]:
    """Count where the host waits for the device or, on a CPU, where it would wait for a GPU.

    `with syncs() as counted: step()`, then `print(counted)`, `counted.count` and `counted.places`. It intercepts every
    operation that passes torch's dispatcher, backward included, and so slows the step down: do not count and time the
    same steps. `.cpu()`, `.tolist()`, a printed tensor and a list of indices count once each. A compiled function runs
    eagerly inside. Beside a GPU a copy to it counts, too, unless it is `non_blocking`; on a CPU it cannot be foreseen.

    **Arguments:**

    - `ledger`: the ledger whose open stage each wait counts for, in `counted.stages`.
    """
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    counted = Syncs()
    reading = False  # inside one of `_READS`: its parts are not counted again

    def waited(name: str, cuda: bool, call: Callable[[], Any]) -> Any:
        place, begin = _place(), perf_counter()
        result = call()
        if place is not None:
            stage = "other" if ledger is None else ledger.current
            counted.waits.append(Wait(name, place, stage, cuda, perf_counter() - begin))
        return result

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = op._schema.name.removeprefix("aten::")
            cuda = None if reading else _waits(name, op._schema.overload_name, args, kwargs)
            return op(*args, **kwargs) if cuda is None else waited(name, cuda, lambda: op(*args, **kwargs))

    class Reads(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal reading
            kwargs, name = kwargs or {}, getattr(function, "__name__", "")
            if reading or not _reads(name, args, kwargs):
                return function(*args, **kwargs)
            reading = True
            try:
                cuda = bool(getattr(args[0] if args else kwargs.get("indices"), "is_cuda", False))
                return waited(name, cuda, lambda: function(*args, **kwargs))
            finally:
                reading = False

    # a compiled function that is called inside a mode would be eager from then on; here it is, and only here
    with torch.compiler.set_stance("force_eager"), Operations(), Reads():
        yield counted
    if counted.cuda:
        counted.waits = [wait for wait in counted.waits if wait.cuda]
