"""The GPUs of this machine that answer, and the ranks that a number of GPUs means."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tclab._display import counted
from tclab.errors import InputError

_PROBE = "import torch; assert (torch.ones(2, device='cuda').sum() == 2).item()"
_PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class Gpus:
    """The GPUs that are listed here, by the names that `CUDA_VISIBLE_DEVICES` gives them."""

    good: tuple[str, ...] = ()  # those that compute
    dead: tuple[tuple[str, str], ...] = ()  # the others, each with the error of the attempt

    def __str__(self) -> str:
        return "; ".join(
            [
                f"{counted(len(self.good), 'GPU')} here",
                *(f"GPU {name} is listed and does not answer: {why}" for name, why in self.dead),
            ]
        )


def listed() -> list[str]:
    """Return the names of the GPUs that torch lists, without asking any of them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = torch.cuda.device_count()
    return ([name.strip() for name in named.split(",") if name.strip()] or [str(i) for i in range(count)])[:count]


def _tried(names: Sequence[str]) -> dict[str, str | None]:
    """Compute on each GPU, each in a new process, and return its error; `None` for one that works.

    A dead GPU would end the process that uses it, and hide the others.
    """
    tries = {
        name: subprocess.Popen(
            [sys.executable, "-c", _PROBE],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": name},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    }
    errors: dict[str, str | None] = {}
    for name, process in tries.items():
        try:
            _, words = process.communicate(timeout=_PROBE_SECONDS)
            last = (words.strip().splitlines() or ["it said nothing"])[-1]
            errors[name] = last if process.returncode else None
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            errors[name] = f"nothing for {_PROBE_SECONDS:g} s"
    return errors


@cache
def gpus() -> Gpus:
    """Return the GPUs of this machine; found out once, and one that is dead is warned of."""
    tried = _tried(listed())
    dead = tuple((name, why) for name, why in tried.items() if why is not None)
    answering = Gpus(tuple(name for name, why in tried.items() if why is None), dead)
    if dead:
        warnings.warn(str(answering), stacklevel=2)
    return answering


def device_of(device: str) -> str:
    """Return "cuda" or "cpu" for a point's device: "auto" is CUDA if there is any.

    **Raises:** `InputError` for "cuda" where there is none.
    """
    if device == "cpu":
        return "cpu"
    if listed():
        return "cuda"
    if device == "cuda":
        raise InputError("device is 'cuda', and torch finds no CUDA device here; expected 'cpu' or 'auto'")
    return "cpu"


def check_enough(ranks: int) -> None:
    """Make sure that this machine has a GPU for each of some ranks.

    **Raises:** `InputError` that names those that do not answer.
    """
    if ranks > len(gpus().good):
        need = "1 rank needs 1 GPU" if ranks == 1 else f"{ranks} ranks need {ranks} GPUs"
        raise InputError(f"{need}, and there is {gpus()}; expected fewer, or device='cpu'")


def ranks_of(asked: int | str, device: str = "auto") -> tuple[str, int]:
    """Return device and ranks for a notebook's parameter `gpus`: "auto" is all GPUs, 0 the CPU.

    **Raises:** `InputError` unless it is "auto" or a number from 0 up, or for more GPUs than there are. On a machine
    without GPUs that many ranks share the CPU; with `device="cuda"` that is an error, too.
    """
    number = int(asked) if isinstance(asked, str) and asked.isdigit() else asked
    if number != "auto" and (isinstance(number, (bool, str)) or not isinstance(number, int) or number < 0):
        raise InputError(f"gpus is {asked!r}, expected 'auto' or a number from 0 up")
    if number == 0 and device == "cuda":
        raise InputError("gpus is 0 and device 'cuda', expected at least 1, or device='cpu'")
    if number == 0 or device == "cpu":
        return "cpu", 1 if isinstance(number, str) else max(number, 1)
    ranks = (len(gpus().good) if len(listed()) > 1 else 1) if isinstance(number, str) else number
    device = device_of(device)
    if device == "cuda" and (ranks > 1 or len(listed()) > 1):  # the only one there is shows itself when it is used
        check_enough(max(ranks, 1))
    return device, ranks


def ranks_on_node(asked: int | str, gpus_per_node: int | str | None = None, device: str = "auto") -> tuple[str, int]:
    """Return device and ranks as `ranks_of` does, for a machine of a cluster, which this one cannot look at.

    **Arguments:**

    - `gpus_per_node`: as Slurm takes it: 4, or "a100:4". With `None`, this machine counts.

    **Raises:** `InputError` for what cannot be read, or for more than there are.
    """
    if gpus_per_node in (None, ""):
        return ranks_of(asked, device)
    text = str(gpus_per_node or 0).rpartition(":")[2]
    if not text.isdigit() or isinstance(gpus_per_node, bool):
        raise InputError(f"gpus_per_node is {gpus_per_node!r}, expected a number, or 'a100:4'")
    there = int(text)
    if device == "cpu" or str(asked) == "0" or not there:
        if device == "cuda":
            raise InputError("device is 'cuda', and gpus_per_node asks for none; expected a number of at least 1")
        return "cpu", 1 if asked == "auto" else ranks_of(asked, "cpu")[1]
    number = there if asked == "auto" else ranks_of(asked, "cpu")[1]
    if number > there:
        raise InputError(f"gpus is {number}, and a machine with gpus_per_node={gpus_per_node} has {there}")
    return "cuda", number
