"""What the overheads of the case study's training code do, so that each can be measured; off unless a point has them.

They wrap a step, its model and its loss, which do not know them. `tclab.sweeps` imports this module for points that
have overheads, and for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tclab.masking import Batch, Strategy
from tclab.message_passing import View
from tclab.models import Dango, DangoLoss, HeteroCell, ModelKind
from tclab.models._dango import DangoOutput
from tclab.sweeps.config._overhead_names import LOGGING
from tclab.training._step import Stage, Step


class StepWithOverheads(Step):
    """A `Step` with overheads; those that log do so in a further stage, `log`.

    **Arguments:**

    - `overheads`: names from `tclab.case_study.OVERHEADS` that apply to the model.
    - `options`: those of `Step`.
    """

    def __init__(
        self,
        kind: ModelKind,
        strategy: Strategy,
        *,
        overheads: Iterable[str],
        **options: Any,
    ) -> None:
        super().__init__(kind, strategy, **options)
        self.overheads = tuple(overheads)
        self.logged: dict[str, float] = {}
        self._logs = bool(LOGGING & set(self.overheads))
        self._seen: list[tuple[Tensor, Tensor]] = []  # each slice's predictions and targets, [b]
        apply_to_model(self.model, self.overheads)
        if "dense_targets" in self.overheads:
            assert isinstance(self.loss, DangoLoss)
            make_dense_targets(self.loss)
        self.loss = partial(self._loss_with_overheads, self.loss)

    def _loss_with_overheads(self, loss: Callable[..., Tensor], output: Any, targets: Tensor, **given: Any) -> Tensor:
        if self._logs:
            self._seen.append((getattr(output, "predictions", output).detach(), targets))
        found = loss(output, targets, **given)
        return with_zero_params(found, self.model) if "zero_params_loss" in self.overheads else found

    def run(self, moved: Batch, *, stage: Stage = nullcontext, **how: Any) -> Tensor | None:
        """Run the step's stages, and `log`; see `Step.run`."""
        loss = super().run(moved, stage=stage, **how)
        if self._seen:
            predictions, targets = map(torch.cat, zip(*self._seen, strict=True))
            self._seen.clear()
            if loss is not None:
                with stage("log"):
                    self._log(loss, predictions, targets)
        return loss

    def _log(self, loss: Tensor, predictions: Tensor, targets: Tensor) -> None:
        if "item_logging" in self.overheads:
            self.logged = read_one_by_one(loss, predictions, targets)
        if "print_loss" in self.overheads:
            print(f"Loss: {loss}")


def with_zero_params(loss: Tensor, model: nn.Module) -> Tensor:
    """Return the loss plus zero times each parameter that has no gradient yet: all, unless gradients accumulate."""
    for parameter in model.parameters():
        if parameter.grad is None:
            loss = loss + 0.0 * parameter.sum()
    return loss


def read_one_by_one(loss: Tensor, predictions: Tensor, targets: Tensor) -> dict[str, float]:
    """Return 15 figures of a step, each read with its own `.item()`, so that the host waits for each.

    **Arguments:**

    - `loss`: [], detached. `predictions`, `targets`: [B].
    """
    predictions = predictions.to(targets.dtype)
    error = predictions - targets
    figures = {"loss": loss, "mse": error.square().mean(), "mae": error.abs().mean()}
    for name, values in (("prediction", predictions), ("target", targets), ("error", error)):
        figures |= {f"{name}_mean": values.mean(), f"{name}_min": values.min(), f"{name}_max": values.max()}
        figures[f"{name}_rms"] = values.square().mean().sqrt()
    return {name: value.item() for name, value in figures.items()}


# ---- of a loss


def dense_reconstruction_loss(reconstruction: Tensor, edge_index: Tensor, weight: float) -> Tensor:
    """Return the same as `reconstruction_loss`, by way of the dense target, [N, N], which is made here."""
    ones = torch.ones_like(edge_index[0], dtype=reconstruction.dtype)
    target = torch.sparse_coo_tensor(edge_index, ones, reconstruction.shape, check_invariants=False).to_dense()
    squared = (reconstruction - target).square()
    on_edges = (squared * (target != 0)).sum()
    elsewhere = (squared * (target == 0)).sum()
    return (on_edges + weight * elsewhere) / reconstruction.numel()


def make_dense_targets(loss: DangoLoss) -> None:
    """Have a loss make every network's dense 0/1 target in each pass."""

    def reconstruction(reconstructions: Mapping[str, Tensor]) -> Tensor:
        parts = [
            dense_reconstruction_loss(found, loss.edges[name], loss.zero_weights[name])
            for name, found in reconstructions.items()
        ]
        return torch.stack(parts).mean()

    _replace_method(loss, "reconstruction", reconstruction)


# ---- of a model


def apply_to_model(model: nn.Module, overheads: Iterable[str]) -> None:
    """Apply to a model, in place, the overheads that concern it; its parameters keep their names and order."""
    for name in overheads:
        if name in _OF_THE_MODEL:
            _OF_THE_MODEL[name](model)


def _raise_on_nan(module: nn.Module, inputs: Any, output: Tensor) -> None:
    if torch.isnan(output).any():
        raise RuntimeError(f"NaN in the output of {type(module).__name__}")


def _isnan_checks(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    layers = [part for layer in model.layers for part in (layer.aggregation, layer.metabolic)]
    heads = [model.gate, model.transform, model.head, model.local_head, model.mixer]
    for module in (model.preprocessor, *layers, *heads):
        if isinstance(module, nn.Module):  # a part that the model does not have is None
            module.register_forward_hook(_raise_on_nan)


def _wild_type_apart(model: nn.Module) -> None:
    _replace_method(model, "parts", lambda view: [view.wild_type, view])


def _preprocessor_per_sample(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    preprocessor, embedding = model.preprocessor, model.embedding
    # not `begin`, which would carry fewer rows
    _replace_method(model, "rows", lambda view: preprocessor(view.lift(embedding.weight)))


def _second_forward(model: nn.Module) -> None:
    assert isinstance(model, Dango)
    output: Callable[[View], DangoOutput] = model.output
    _replace_method(model, "output", lambda view: DangoOutput(output(view).predictions, output(view).reconstructions))


def _replace_method(of: Any, method: str, replacement: Callable[..., Any]) -> None:
    setattr(of, method, replacement)  # an instance attribute shadows the class's method


_OF_THE_MODEL: dict[str, Callable[[nn.Module], None]] = {
    "isnan_checks": _isnan_checks,
    "wild_type_apart": _wild_type_apart,
    "preprocessor_per_sample": _preprocessor_per_sample,
    "second_forward": _second_forward,
}
