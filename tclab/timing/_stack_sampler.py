"""A stack sampler: what the main thread does, by stage and line of the user's own code, with no mark in it.

It is a timer's signal, not a thread that reads `sys._current_frames()`. A thread needs the interpreter's lock before it
reads, and gets it where the program gives it away: in a call that waits. Lines that hold the lock (JSON, dictionaries,
a loop in Python) would count for the next tensor operation. A signal's handler runs on the main thread itself, after
the call that it came in, on that call's line. Time is cut into slots of 20 ms with a moment at random in each, so that
no loop runs in step with them; moments that pass before a handler runs lay in that call, which gets their slots.
"""

from __future__ import annotations

import atexit
import linecache
import os
import random
import signal
import site
import sys
import sysconfig
import threading
from collections.abc import Callable
from dis import get_instructions
from functools import cache
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tclab.errors import InputError
from tclab.timing._sample_parts import COLLATE, OWN, part_of_call, part_of_module, positions_of

HERTZ = 50.0  # a signal takes 130 to 240 µs of processor time on a virtual machine, with timer and cold caches
_SHORTEST = 2e-5  # seconds to the next signal: 0 would turn the timer off
_DRAWN = 4096
_DEEPEST = 8  # user's frames of a stack that are told apart, innermost first

# how a file counts in a stack
_LIBRARY, _USER, _INTERACTIVE, _DRIVER, _SELF = 0, 1, 2, 3, 4
# files of a framework's loop: what lies outside of them is no part of a step
_DRIVERS = ("/torch/utils/data/_utils/fetch.py", "/lightning/pytorch/loops/", "/pytorch_lightning/loops/",
            "/transformers/trainer.py")  # fmt: skip


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {str(Path(folder).resolve()) for folder in folders}
    folders |= {*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[1])}
    return tuple(f"{folder}{os.sep}" for folder in folders)


_FOLDERS = _library_folders()
_OURS = f"{Path(__file__).parent}{os.sep}"


@cache
def _kind_of(filename: str) -> int:
    if any(driver in filename for driver in _DRIVERS):
        return _DRIVER
    if filename.startswith(_OURS):
        return _SELF
    if filename.startswith("<"):  # generated code, the interpreter's own, or what was typed
        return _USER if filename.startswith("<ipython") else _INTERACTIVE
    inside = filename.startswith(_FOLDERS) or "site-packages" in filename or "dist-packages" in filename
    return _LIBRARY if inside or "torchinductor_" in filename else _USER


@cache  # a ledger of a hundred steps of 20 ms would pay a thousandth of its time for drawing them
def _sampling_offsets(slot: int) -> list[int]:
    """Return one moment in each of many slots, in nanoseconds from its begin."""
    rng = random.Random(0)  # not the user's generator
    return [int(rng.random() * slot) for _ in range(_DRAWN)]


class Site(NamedTuple):
    """A place in the user's code, and what it was called for."""

    file: str
    line: int
    function: str
    inside: str  # library function that the line is in, as "module.function"; empty for the line's own work
    loops: int  # loops around the line, those of its callers included
    part: str = ""  # of making a sample, one of `PARTS`; empty elsewhere


def loops_of(code: CodeType) -> list[tuple[int, int]]:
    """Return the first and last offset of each loop in a function's own bytecode."""
    ends: dict[int, int] = {}
    for instruction in get_instructions(code):
        backward = "JUMP" in instruction.opname and "NO_INTERRUPT" not in instruction.opname
        if backward and isinstance(instruction.argval, int) and instruction.argval < instruction.offset:
            ends[instruction.argval] = max(ends.get(instruction.argval, 0), instruction.offset)
    return sorted(ends.items())


def is_user_frame(frame: FrameType) -> bool:
    """Return whether a frame is the user's: no installed package, no part of Python or of tclab, nothing generated."""
    kind = _kind_of(frame.f_code.co_filename)
    return kind == _USER or (kind == _INTERACTIVE and frame.f_globals.get("__name__") == "__main__")


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's from this one on; `None` where there is none."""
    while frame is not None and not is_user_frame(frame):
        frame = frame.f_back
    return frame


def source_of(file: str, line: int) -> str:
    """Return a line's text, stripped; empty where it is not known."""
    return linecache.getline(file, line).strip()


class StackSampler:
    """Samples the main thread's stack and adds up its time by stage and line.

    `stage` returns the stage that the program is in, or `None` to leave the sample out.
    """

    def __init__(self, stage: Callable[[], str | None], hertz: float = HERTZ) -> None:
        self.stage = stage
        self.loop_codes: dict[int, CodeType] = {}  # functions that iterate over the steps: their loop is none in a step
        self.phase = ""  # "sample" or `COLLATE` while a dataset or a collate_fn runs
        self._callees: dict[tuple[int, int], str | None] = {}  # instruction of a dataset's code → part of what it calls
        self.own_ns = 0  # processor time of the sampler itself
        self.slots = 0  # samples
        self._slots: dict[tuple[Any, ...], int] = {}
        self._codes: dict[int, CodeType] = {}  # keeps them, so that an id stays one function's
        self._modules: dict[int, str] = {}
        self._kinds: dict[str, int] = {}
        self._slot = int(1e9 / hertz)  # nanoseconds
        self._sampling_offsets = _sampling_offsets(self._slot)
        self._origin = self._next = 0  # the first slot's begin, and the number of the next
        self._before: Any = None
        self.running = False

    def start(self) -> None:
        """Begin.

        **Raises:** `InputError` on another than the main thread, and where SIGALRM is in use.
        """
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
            raise InputError("lines are sampled by a timer's signal, which only a main thread on Linux or macOS gets")
        self._before = signal.getsignal(signal.SIGALRM)
        if isinstance(getattr(self._before, "__self__", None), StackSampler):
            if any(signal.getitimer(signal.ITIMER_REAL)):
                raise InputError("lines are sampled already; expected one Ledger(lines=True) or profile at a time")
            self._before = signal.SIG_DFL  # a forked process has its parent's handler and no timer
        if self._before not in (signal.SIG_DFL, signal.SIG_IGN, None):
            raise InputError(f"lines are sampled by SIGALRM, which has a handler: {self._before!r}; expected none")
        hide_from_dynamo()
        signal.signal(signal.SIGALRM, self._sample)
        signal.siginterrupt(signal.SIGALRM, False)  # a read or a wait that a signal meets goes on
        self.running = True
        atexit.register(self.stop)  # a signal after the interpreter's end would kill the process
        self._origin, self._next = perf_counter_ns(), 0
        signal.setitimer(signal.ITIMER_REAL, max(_SHORTEST, self._sampling_offsets[0] * 1e-9))

    def stop(self) -> None:
        """End; what was sampled stays."""
        if self.running:
            self.running = False
            atexit.unregister(self.stop)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)  # drops one that is on its way
            signal.signal(signal.SIGALRM, self._before or signal.SIG_DFL)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        """Book the time since the signal before; no other function of Python is called where the code was seen."""
        begin, own = perf_counter_ns(), thread_time_ns()
        passed = 0
        while (due := self._origin + self._next * self._slot + self._sampling_offsets[self._next % _DRAWN]) <= begin:
            self._next += 1
            passed += 1
        if not self.running:
            return
        if not passed:  # the timer was early
            signal.setitimer(signal.ITIMER_REAL, max(_SHORTEST, (due - begin) * 1e-9))
            return
        kinds, codes = self._kinds, self._codes
        chain: list[int] = []
        leaf = inside = 0  # the innermost function; the library's function that the user's innermost line called
        outer = 0  # the library's function that called the user's innermost one, in a dataset
        innermost = frame
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(code.co_filename, -1)
            if kind < 0:
                kind = kinds[code.co_filename] = _kind_of(code.co_filename)
            if kind == _INTERACTIVE:
                kind = _USER if frame.f_globals.get("__name__") == "__main__" else _LIBRARY
            identity = id(code)
            if not leaf:
                leaf = identity
                codes[identity] = code
                self._modules[identity] = frame.f_globals.get("__name__", "")
            if kind == _USER:
                codes[identity] = code
                chain += (identity, frame.f_lasti)
                if identity in self.loop_codes or len(chain) >= 2 * _DEEPEST:
                    break
            elif kind == _DRIVER:
                if not chain:  # the framework's own work: the user's line outside would be the one that began it all
                    inside = 0
                break
            elif kind != _SELF and (not chain or (self.phase and not outer)):
                if chain:
                    outer = identity
                else:
                    inside = identity
                if identity not in codes:
                    codes[identity] = code
                    self._modules[identity] = frame.f_globals.get("__name__", "")
            frame = frame.f_back
        stage = self.stage()
        if stage is not None:
            key = (stage, tuple(chain), inside if chain else leaf, self.phase, outer)
            if self.phase and chain and not inside and innermost is not None and (*chain[:2],) not in self._callees:
                self._callees[chain[0], chain[1]] = part_of_call(innermost)
            self._slots[key] = self._slots.get(key, 0) + passed
            self.slots += passed
        now = perf_counter_ns()
        self.own_ns += thread_time_ns() - own
        signal.setitimer(signal.ITIMER_REAL, max(_SHORTEST, (due - now) * 1e-9))

    def sites(self) -> dict[tuple[str, Site], float]:
        """Return (stage, line) → sampled seconds."""
        found: dict[tuple[str, Site], float] = {}
        loops: dict[int, list[tuple[int, int]]] = {}
        for (stage, chain, inside, phase, outer), slots in list(self._slots.items()):
            around = 0
            for identity, at in zip(chain[::2], chain[1::2], strict=True):
                if identity not in loops:
                    loops[identity] = loops_of(self._codes[identity])
                depth = sum(first <= at <= last for first, last in loops[identity])
                around += max(0, depth - (identity in self.loop_codes))
            name = ""
            if inside:
                name = f"{self._modules.get(inside, '')}.{self._codes[inside].co_qualname}".lstrip(".")
            part = ""
            if phase:
                modules = [self._modules.get(identity, "") for identity in (inside, outer)]
                called = self._callees.get((*chain[:2],)) if chain and not inside else None
                part = part_of_module(modules[0]) or called or part_of_module(modules[1]) or OWN
                part = COLLATE if phase == COLLATE else part
            if chain:
                code = self._codes[chain[0]]
                line = positions_of(code, chain[1])[0] or code.co_firstlineno
                place = Site(code.co_filename, line, code.co_qualname, name, around, part)
            else:
                place = Site("", 0, "", name, 0, part)
            found[stage, place] = found.get((stage, place), 0.0) + slots * self._slot * 1e-9
        return found


def hide_from_dynamo() -> None:
    """Keep torch.compile from tracing the handler where a signal comes inside a compiled function."""
    if "torch" in sys.modules:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(StackSampler._sample.__code__, strategy)
