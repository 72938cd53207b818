"""The GPUs of this machine, and the ranks that a number of GPUs means."""

from __future__ import annotations

import os
from typing import Literal

from tclab._display import counted
from tclab.errors import InputError
from tclab.sweeps.config._fields import text_value


def listed() -> list[str]:
    """Return the names of the GPUs that torch lists, as `CUDA_VISIBLE_DEVICES` has them, without asking any of them."""
    import torch

    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return (named or [str(i) for i in range(count)])[:count]


def device_of(device: str) -> Literal["cpu", "cuda"]:
    """Return "cuda" or "cpu" for a point's device: "auto" is CUDA if there is any.

    **Raises:** `InputError` for "cuda" where there is none.
    """
    if device != "cpu" and listed():
        return "cuda"
    if device == "cuda":
        raise InputError("device is 'cuda', and torch finds no CUDA device here; expected 'cpu' or 'auto'")
    return "cpu"


def check_enough(ranks: int) -> None:
    """Make sure that this machine has a GPU for each of some ranks.

    **Raises:** `InputError` where it has fewer.
    """
    gpus = len(listed())
    if ranks > gpus:
        need = f"{ranks} ranks need {ranks} GPUs"
        raise InputError(f"{need}, and this machine has {counted(gpus, 'GPU')}; expected fewer, or device='cpu'")


def ranks_of(asked: int | str, device: str = "auto", *, gpus_per_node: int | str | None = None) -> tuple[str, int]:
    """Return device and ranks for a notebook's parameter `gpus`: "auto" is all GPUs, 0 the CPU.

    On a machine without GPUs that many ranks share the CPU; with `device="cuda"` that is an error.

    **Arguments:**

    - `asked`: "auto", or a number from 0 up. `device`: "auto", "cpu" or "cuda".
    - `gpus_per_node`: of a cluster's machine, which this one cannot look at, as Slurm takes it: 4, or "a100:4". With
      `None`, this machine counts.

    **Raises:** `InputError` for what cannot be read, or for more GPUs than there are.
    """
    number = text_value(asked) if isinstance(asked, str) else asked
    if number != "auto" and (type(number) is not int or number < 0):
        raise InputError(f"gpus is {asked!r}, expected 'auto' or a number from 0 up")
    there = 0 if number == 0 or device == "cpu" else _gpus_of(gpus_per_node)
    if device == "cuda" and not there:
        raise InputError("device is 'cuda', and there is none, or none was asked for; expected 'cpu' or 'auto'")
    ranks = max(there, 1) if number == "auto" else max(number, 1)
    if there and ranks > there:
        raise InputError(f"gpus is {ranks}, and there {'is' if there == 1 else 'are'} {there}; expected fewer, or 0")
    return ("cuda" if there else "cpu"), ranks


def _gpus_of(gpus_per_node: int | str | None) -> int:
    if gpus_per_node in (None, ""):
        return len(listed())
    number = text_value(str(gpus_per_node).rpartition(":")[2])
    if type(number) is not int or number < 0:
        raise InputError(f"gpus_per_node is {gpus_per_node!r}, expected a number, or 'a100:4'")
    return number
