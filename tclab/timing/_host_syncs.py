"""Host-device synchronisations of a block of code, by stage and line of code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tclab._display import Display, Shown, counted, seconds_text
from tclab.timing._user_code import source_of, user_frame

if TYPE_CHECKING:
    from tclab.timing._ledger import Ledger

_ALWAYS = frozenset(  # operations whose result, or whose result's size, the host needs before it continues
    ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
     "unique_dim_consecutive", "bincount", "equal")
)  # fmt: skip
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
            code = source_of(file, int(rest.partition(" ")[0]))
            lines.append(
                ("" if seconds is None else seconds_text(seconds), str(times), f"{Path(file).name}:{rest}", code)
            )
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


def _source(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the tensor that an operation waits for; `None` if it waits for none."""
    import torch

    if name == "copy_":
        return args[1] if args[1].is_cuda and not args[0].is_cuda else None
    waits = name in _ALWAYS
    if name == "repeat_interleave":
        waits = kwargs.get("output_size") is None
    elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        masked = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        waits = masked and (name == "index" or args[2].numel() != 1)  # a masked fill with one value does not wait
    elif name == "_to_copy":
        waits = args[0].is_cuda and torch.device(kwargs.get("device") or args[0].device).type == "cpu"
    return args[0] if waits else None


@contextmanager
def syncs(ledger: Ledger | None = None) -> Iterator[Syncs]:
    """Count where the host waits for the device or, on a CPU, where it would wait for a GPU.

    `with syncs() as counted: step()`, then `print(counted)`, `counted.count` and `counted.places`. It intercepts every
    operation that passes torch's dispatcher, backward included, and so slows the step down: do not count and time the
    same steps. `.cpu()`, `.tolist()` and a printed tensor count once each. A compiled function runs eagerly inside.

    **Arguments:**

    - `ledger`: the ledger whose open stage each wait counts for, in `counted.stages`.
    """
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    counted = Syncs()
    reading = False  # inside one of `_READS`: its parts are not counted again

    def waited(name: str, tensor: Any, call: Callable[[], Any]) -> Any:
        place, begin = _place(), perf_counter()
        result = call()
        if place is not None:
            stage = "other" if ledger is None else ledger.current
            counted.waits.append(Wait(name, place, stage, bool(tensor.is_cuda), perf_counter() - begin))
        return result

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = op._schema.name.removeprefix("aten::")
            source = None if reading else _source(name, args, kwargs)
            return op(*args, **kwargs) if source is None else waited(name, source, lambda: op(*args, **kwargs))

    class Reads(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal reading
            kwargs, name = kwargs or {}, getattr(function, "__name__", "")
            if reading or name not in _READS:
                return function(*args, **kwargs)
            reading = True
            try:
                return waited(name, args[0], lambda: function(*args, **kwargs))
            finally:
                reading = False

    # a compiled function that is called inside a mode would be eager from then on; here it is, and only here
    with torch.compiler.set_stance("force_eager"), Operations(), Reads():
        yield counted
    if counted.cuda:
        counted.waits = [wait for wait in counted.waits if wait.cuda]
