"""Modules that differ in the values of their weights alone, called as one: each of its kernels serves all of them.

Nine networks' small MLPs are some 500 kernels of a training step, most of which a GPU finishes before the host has
launched the next. On a CPU stacked rows and weights take twice the time of one module after the other.

Shapes: K modules, R rows, F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tclab.message_passing.kernels._row_ops import under_transform

STACKED_ON = {"cuda"}  # types of devices
_AROUND = (nn.Sequential, nn.ModuleList, nn.Identity, nn.Dropout)


def is_stacked(x: Tensor) -> bool:
    """Return whether what several networks do to rows on the device of `x` is computed at once."""
    return x.device.type in STACKED_ON and not torch.compiler.is_compiling() and not under_transform()


def each(functions: Sequence[Any], rows: Iterable[Tensor]) -> Iterable[Tensor]:
    """Return each function's result for its rows: [K, R, F'] for one tensor of rows [K, R, F], if modules are alike.

    Otherwise it is an iterator, which calls a function when its result is asked for.
    """
    may_stack = isinstance(rows, Tensor) and is_stacked(rows) and not nn.modules.module._has_any_global_hook()
    facts = [_facts(function) for function in functions] if may_stack else [None]
    if None in facts or any(other != facts[0] for other in facts):
        return map(lambda function, part: function(part), functions, rows)
    # of a parameter the gradient is a part of the stacked one, in the parameter's own order of memory
    named, k = [dict(function.named_parameters(remove_duplicate=False)) for function in functions], len(functions)
    weights = {name: torch.cat([weight[name] for weight in named]).unflatten(0, (k, -1)) for name in named[0]}
    return functional_call(functions[0], weights, rows, tie_weights=False)


def _facts(module: Any) -> list[Any] | None:
    """Return what a module of tclab's computes with, but for its weights' values.

    `None` for a function, for what a user made or put in, and where hooks watch it.
    """
    if not isinstance(module, nn.Module):
        return None
    facts = []
    for part in module.modules():
        options = {name: value for name, value in vars(part).items() if not name.startswith("_") and name != "network"}
        is_watched = any(value for name, value in vars(part).items() if name.endswith("_hooks"))
        is_known = type(part).__module__.startswith("tclab.models.") or type(part) in _AROUND
        is_changed = any(callable(option) or hasattr(option, "shape") for option in options.values())
        if not is_known or is_watched or part._buffers or is_changed:
            return None
        weights = {name: w if w is None else (type(w), w.shape, w.dtype) for name, w in part._parameters.items()}
        facts.append((type(part), options, weights))
    return facts
