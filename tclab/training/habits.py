"""The original's habits as switches: each off by default, each there to be measured.

They are put on a model, a loss and a step from outside; the models are written without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tclab.errors import InputError, unknown
from tclab.message_passing import View
from tclab.models import Dango, DangoLoss, DangoOutput, HeteroCell, Loss, ModelKind
from tclab.models.hyper_sagnn import BatchQuadraticHyperSAGNN, HyperSAGNN
from tclab.models.layers import BatchWideLayerNorm


@dataclass(frozen=True)
class Habit:
    """One thing that the original does in every step.

    **Arguments:**

    - `name`: as `Point` knows it.
    - `what`: in one line.
    - `exact`: False where it changes predictions or gradients, so that it is never equal to `subgraph`.
    - `of_the_loop`: it belongs to the training loop, so to every model.
    """

    name: str
    what: str
    exact: bool = True
    of_the_loop: bool = False


HABITS = {
    habit.name: habit
    for habit in (
        Habit("item_logging", "reads 15 figures of each step with .item()", of_the_loop=True),
        Habit("print_loss", "prints each step's loss", of_the_loop=True),
        Habit("zero_params_loss", "adds zero times every parameter to the loss", of_the_loop=True),
        Habit("isnan_checks", "asks after each part of the model whether anything is NaN"),
        Habit("batch_wide_layer_norm", "norms over the whole mini-batch: other predictions", exact=False),
        Habit("wild_type_apart", "encodes the wild type in a pass of its own, not together with the samples"),
        Habit("wild_type_once", "encodes the wild type once and keeps it: other gradients", exact=False),
        Habit("preprocessor_per_sample", "runs the preprocessor on B + 1 copies of the same features"),
        Habit("quadratic_attention", "lets every deleted node of the batch look at every other, masked"),
        Habit("second_forward", "runs the whole model a second time for the reconstructions"),
        Habit("dense_targets", "makes each network's dense adjacency anew in each step"),
    )
}
_READ = 15  # `.item()` a step in the original's hetero trainer, about


def checked(habits: Iterable[str]) -> tuple[str, ...]:
    """Return habits in the order of `HABITS`.

    **Raises:** `InputError` for an unknown one, with the nearest name, or one that is given twice.
    """
    wanted = [habits] if isinstance(habits, str) else list(habits)
    for name in wanted:
        if name not in HABITS:
            raise unknown("habit", name, HABITS)
    if len(set(wanted)) < len(wanted):
        raise InputError(f"habits is {tuple(wanted)!r}, expected each habit once")
    if {"wild_type_apart", "wild_type_once"} <= set(wanted):
        raise InputError("habits has wild_type_apart and wild_type_once, expected one of them: once is apart, too")
    return tuple(name for name in HABITS if name in wanted)


def applying(kind: ModelKind) -> list[str]:
    """Return the names of the habits that a model can take on."""
    return [name for name, habit in HABITS.items() if habit.of_the_loop or name in kind.habits]


def inexact(habits: Iterable[str]) -> list[str]:
    """Return those habits that change predictions or gradients."""
    return [name for name in habits if not HABITS[name].exact]


def put_on_model(model: nn.Module, habits: Iterable[str]) -> None:
    """Give a model the habits that are a model's; its parameters keep their names and their order."""
    for name in habits:
        if name in _OF_THE_MODEL:
            _OF_THE_MODEL[name](model)


def put_on_loss(loss: Loss, habits: Iterable[str]) -> None:
    """Give a loss the habits that are a loss's."""
    if "dense_targets" in habits:
        assert isinstance(loss, DangoLoss)
        loss.dense_targets = True


def with_zero_params(loss: Tensor, model: nn.Module) -> Tensor:
    """Return a loss with zero times every parameter that has no gradient yet: all, unless gradients accumulate."""
    for parameter in model.parameters():
        if parameter.grad is None:
            loss = loss + 0.0 * parameter.sum()
    return loss


def read_one_by_one(loss: Tensor, output: Any, targets: Tensor) -> dict[str, float]:
    """Return 15 figures of a step, each read by itself, so that the host waits for each."""
    predictions = getattr(output, "predictions", output).detach().to(targets.dtype)
    error = predictions - targets
    figures = {"loss": loss, "mse": error.square().mean(), "mae": error.abs().mean()}
    for name, values in (("prediction", predictions), ("target", targets), ("error", error)):
        figures |= {f"{name}_mean": values.mean(), f"{name}_min": values.min(), f"{name}_max": values.max()}
        figures[f"{name}_rms"] = values.square().mean().sqrt()
    assert len(figures) == _READ
    return {name: value.item() for name, value in figures.items()}


# ---- what is put on a model


def _raise_on_nan(module: nn.Module, inputs: Any, output: Tensor) -> None:
    if torch.isnan(output).any():
        raise RuntimeError(f"NaN in what {type(module).__name__} gives")


def _isnan_checks(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    layers = [*model.aggregations, *model.metabolic]
    last = [part[-1] for part in (model.gate, model.head, model.mixer) if part is not None]
    local = [] if model.local_head is None else [model.local_head]
    for module in (model.preprocessor, *layers, *last, model.transform, *local):
        module.register_forward_hook(_raise_on_nan)


def _batch_wide_layer_norm(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, BatchWideLayerNorm(child))


def _quadratic_attention(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, HyperSAGNN):
                setattr(module, name, BatchQuadraticHyperSAGNN(child))


def _wild_type_apart(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    _set(model, "parts", lambda view: [view.wild_type, view])


def _wild_type_once(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    _wild_type_apart(model)
    encode: Callable[[View], Tensor] = model.encode
    kept: list[Tensor] = []

    def once(view: View) -> Tensor:
        if view.size > 1 or view.deleted.most:
            return encode(view)
        if not kept or kept[0].dtype != model.embedding.weight.dtype:
            kept[:] = [encode(view).detach()]
        return kept[0]

    _set(model, "encode", once)


def _preprocessor_per_sample(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    preprocessor, embedding = model.preprocessor, model.embedding
    _set(
        model, "rows", lambda view: preprocessor(view.lift(embedding.weight))
    )  # not `begin`, which would carry fewer


def _second_forward(model: nn.Module) -> None:
    assert isinstance(model, Dango)
    output: Callable[[View], DangoOutput] = model.output
    _set(model, "output", lambda view: DangoOutput(output(view).predictions, output(view).reconstructions))


def _set(model: nn.Module, method: str, replacement: Callable[[View], Any]) -> None:
    setattr(model, method, replacement)  # on this one model, where it is found before its class's method


_OF_THE_MODEL: dict[str, Callable[[nn.Module], None]] = {
    "isnan_checks": _isnan_checks,
    "batch_wide_layer_norm": _batch_wide_layer_norm,
    "wild_type_apart": _wild_type_apart,
    "wild_type_once": _wild_type_once,
    "preprocessor_per_sample": _preprocessor_per_sample,
    "quadratic_attention": _quadratic_attention,
    "second_forward": _second_forward,
}
