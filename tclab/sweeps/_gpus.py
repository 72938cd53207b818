"""The GPUs of this machine, and the ranks that a number of GPUs means."""

from __future__ import annotations

from typing import Literal

from tclab._display import counted
from tclab.errors import InputError
from tclab.sweeps._fields import text_value


def gpu_count() -> int:
    """Return how many GPUs torch lists, of those in `CUDA_VISIBLE_DEVICES`, without asking any of them."""
    import torch

    return int(torch.cuda.device_count())


def device_of(device: str) -> Literal["cpu", "cuda"]:
    """Return "cuda" or "cpu" for a point's device: "auto" is CUDA if there is any.

    **Raises:** `InputError` for "cuda" where there is none.
    """
    if device != "cpu" and gpu_count():
        return "cuda"
    if device == "cuda":
        raise InputError(
            "device is 'cuda', and torch finds no CUDA device here; expected 'cpu' or 'auto'", name="device"
        )
    return "cpu"


def check_enough(ranks: int) -> None:
    """Make sure that this machine has a GPU for each of some ranks.

    **Raises:** `InputError` where it has fewer.
    """
    gpus = gpu_count()
    if ranks > gpus:
        need = f"{ranks} ranks need {ranks} GPUs"
        has = counted(gpus, "GPU")
        raise InputError(f"{need}, and this machine has {has}; expected fewer, or device='cpu'", name="gpus")


def ranks_of(asked: int | str, device: str = "auto") -> tuple[str, int]:
    """Return device and ranks for a notebook's parameter `gpus`: "auto" is all GPUs, 0 the CPU.

    On a machine without GPUs that many ranks share the CPU. With `device="cuda"` a number of ranks is taken as it is:
    the machine that runs them, perhaps a cluster's, is looked at there.

    **Arguments:**

    - `asked`: "auto", or a number from 0 up. `device`: "auto", "cpu" or "cuda".

    **Raises:** `InputError` for what cannot be read, or for more GPUs than there are.
    """
    number = text_value(asked)
    if number != "auto" and (type(number) is not int or number < 0):
        raise InputError(f"gpus is {asked!r}, expected 'auto' or a number from 0 up", name="gpus")
    if device == "cuda" and number not in ("auto", 0):
        return "cuda", number
    gpus = 0 if number == 0 or device == "cpu" else gpu_count()
    if device == "cuda" and not gpus:
        why = "device is 'cuda', and there is none, or none was asked for; expected 'cpu' or 'auto'"
        raise InputError(why, name="device")
    ranks = max(gpus, 1) if number == "auto" else max(number, 1)
    if gpus:
        check_enough(ranks)
    return ("cuda" if gpus else "cpu"), ranks
