"""Overheads of the case study's training code, as switches that are off by default, so that each can be measured.

They are applied to a model, a loss or a step; the models themselves do not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tclab.errors import InputError, unknown
from tclab.message_passing import View
from tclab.models import Dango, DangoLoss, HeteroCell, ModelKind
from tclab.models._dango import DangoOutput
from tclab.models._hyper_sagnn import BatchQuadraticHyperSAGNN, HyperSAGNN
from tclab.models._layers import BatchWideLayerNorm
from tclab.models._model_registry import Loss


@dataclass(frozen=True)
class Overhead:
    """One slow way of the case study's training code."""

    name: str  # in `Point.overheads`
    what: str  # it does in each step, in one line
    exact: bool = True  # false if it changes predictions or gradients: no strategy with it is equal to `subgraph`
    of_the_loop: bool = False  # it belongs to the training loop and so applies to every model


OVERHEADS = {
    overhead.name: overhead
    for overhead in (
        Overhead("item_logging", "reads 15 figures of each `log_every`-th step with .item()", of_the_loop=True),
        Overhead("print_loss", "prints the loss of each `log_every`-th step", of_the_loop=True),
        Overhead("zero_params_loss", "adds zero times every parameter to the loss", of_the_loop=True),
        Overhead("isnan_checks", "checks each part of the model's output for NaN"),
        Overhead("batch_wide_layer_norm", "normalises over the whole mini-batch: other predictions", exact=False),
        Overhead("wild_type_apart", "encodes the wild type in a separate pass, not together with the samples"),
        Overhead("wild_type_once", "encodes the wild type once and keeps it: other gradients", exact=False),
        Overhead("preprocessor_per_sample", "runs the preprocessor on B + 1 copies of the same features"),
        Overhead("quadratic_attention", "lets every removed node of the batch attend to every other, masked"),
        Overhead("second_forward", "runs the whole model a second time for the reconstructions"),
        Overhead("dense_targets", "makes each network's dense adjacency in every step"),
    )
}
LOGGING = {"item_logging", "print_loss"}  # which `Step.log_every` concerns


def validate_overheads(overheads: Iterable[str]) -> tuple[str, ...]:
    """Return overheads in the order of `OVERHEADS`, given their names, or one name as text.

    **Raises:** `InputError` for an unknown name, with the nearest one, a name given twice, or two overheads that
    exclude each other.
    """
    wanted = [overheads] if isinstance(overheads, str) else list(overheads)
    for name in wanted:
        if name not in OVERHEADS:
            raise unknown("overhead", name, OVERHEADS)
    if len(set(wanted)) < len(wanted):
        raise InputError(f"overheads is {tuple(wanted)!r}, expected each overhead once")
    if {"wild_type_apart", "wild_type_once"} <= set(wanted):
        raise InputError("overheads has wild_type_apart and wild_type_once, expected one of them: once is apart, too")
    return tuple(name for name in OVERHEADS if name in wanted)


def applicable_overheads(kind: ModelKind) -> list[str]:
    """Return the names of the overheads that apply to a model."""
    return [name for name, overhead in OVERHEADS.items() if overhead.of_the_loop or name in kind.overheads]


def inexact_overheads(overheads: Iterable[str]) -> list[str]:
    """Return the overheads among these that change predictions or gradients."""
    return [name for name in overheads if not OVERHEADS[name].exact]


def apply_to_model(model: nn.Module, overheads: Iterable[str]) -> None:
    """Apply to a model, in place, the overheads that concern it; its parameters keep their names and order."""
    for name in overheads:
        if name in _OF_THE_MODEL:
            _OF_THE_MODEL[name](model)


def apply_to_loss(loss: Loss, overheads: Iterable[str]) -> None:
    """Apply to a loss, in place, the overheads that concern it."""
    if "dense_targets" in overheads:
        assert isinstance(loss, DangoLoss)
        loss.dense_targets = True


def with_zero_params(loss: Tensor, model: nn.Module) -> Tensor:
    """Return the loss plus zero times each parameter that has no gradient yet: all, unless gradients accumulate."""
    for parameter in model.parameters():
        if parameter.grad is None:
            loss = loss + 0.0 * parameter.sum()
    return loss


def read_one_by_one(loss: Tensor, output: Any, targets: Tensor) -> dict[str, float]:
    """Return 15 figures of a step, each read with its own `.item()`, so that the host waits for each."""
    predictions = getattr(output, "predictions", output).detach().to(targets.dtype)
    error = predictions - targets
    figures = {"loss": loss, "mse": error.square().mean(), "mae": error.abs().mean()}
    for name, values in (("prediction", predictions), ("target", targets), ("error", error)):
        figures |= {f"{name}_mean": values.mean(), f"{name}_min": values.min(), f"{name}_max": values.max()}
        figures[f"{name}_rms"] = values.square().mean().sqrt()
    return {name: value.item() for name, value in figures.items()}


# ---- overheads of a model


def _raise_on_nan(module: nn.Module, inputs: Any, output: Tensor) -> None:
    if torch.isnan(output).any():
        raise RuntimeError(f"NaN in the output of {type(module).__name__}")


def _isnan_checks(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    layers = [*model.aggregations, *model.metabolic]
    last = [part[-1] for part in (model.gate, model.head, model.mixer) if part is not None]
    local = [] if model.local_head is None else [model.local_head]
    for module in (model.preprocessor, *layers, *last, model.transform, *local):
        module.register_forward_hook(_raise_on_nan)


def _replace_layers(kind: type[nn.Module], replacement: Callable[[Any], nn.Module], model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, kind):
                setattr(module, name, replacement(child))


def _wild_type_apart(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    _replace_method(model, "parts", lambda view: [view.wild_type, view])


def _wild_type_once(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    _wild_type_apart(model)
    encode: Callable[[View], Tensor] = model.encode
    wild_type: list[Tensor] = []

    def once(view: View) -> Tensor:
        if view.size > 1 or view.deleted.most:
            return encode(view)
        if not wild_type or wild_type[0].dtype != model.embedding.weight.dtype:
            wild_type[:] = [encode(view).detach()]
        return wild_type[0]

    _replace_method(model, "encode", once)


def _preprocessor_per_sample(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    preprocessor, embedding = model.preprocessor, model.embedding
    _replace_method(
        model, "rows", lambda view: preprocessor(view.lift(embedding.weight))
    )  # not `begin`, which would carry fewer


def _second_forward(model: nn.Module) -> None:
    assert isinstance(model, Dango)
    output: Callable[[View], DangoOutput] = model.output
    _replace_method(model, "output", lambda view: DangoOutput(output(view).predictions, output(view).reconstructions))


def _replace_method(model: nn.Module, method: str, replacement: Callable[[View], Any]) -> None:
    setattr(model, method, replacement)  # an instance attribute shadows the class's method


_OF_THE_MODEL: dict[str, Callable[[nn.Module], None]] = {
    "isnan_checks": _isnan_checks,
    "batch_wide_layer_norm": partial(_replace_layers, nn.LayerNorm, BatchWideLayerNorm),
    "wild_type_apart": _wild_type_apart,
    "wild_type_once": _wild_type_once,
    "preprocessor_per_sample": _preprocessor_per_sample,
    "quadratic_attention": partial(_replace_layers, HyperSAGNN, BatchQuadraticHyperSAGNN),
    "second_forward": _second_forward,
}
