"""The form of a panel: a widget for each parameter, and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from tclab.errors import InputError
from tclab.lab.panel._panel_state import PanelState
from tclab.lab.panel._panel_text import ERROR_COLOUR
from tclab.masking import get as strategy_of
from tclab.masking import names as strategy_names
from tclab.models import get as model_of
from tclab.models import names as model_names
from tclab.sweeps.config._gpus import ranks_of
from tclab.training._step import DTYPES, MODES

_LABEL = "105px"
_UNMARKED = "1px solid transparent"  # of the width of a mark: nothing moves when one comes
_MODEL_DEFAULT = "the model's own"
_MOST_ROWS = 24  # of the list of strategies
_STRATEGIES = "\n".join(
    [
        "several with Ctrl or Shift",
        *(": ".join((n, (strategy_of(n).__doc__ or "").partition("\n")[0])) for n in strategy_names()),
    ]
).replace("`", "")
_MODES = "\n".join(["what of a step is run", *(f"{name}: {meaning}" for name, meaning in MODES.items())])
_SCALES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)


def _field(kind: Any, name: str, label: str, tip: str, **options: Any) -> Any:
    made = kind(
        description=label,
        tooltip=tip,
        layout=widgets.Layout(width="100%", border=_UNMARKED, **options.pop("layout", {})),
        style={"description_width": _LABEL},
        **options,
    )
    made.add_class(f"tclab-{name}")
    return made


def _column(**groups: list[Any]) -> Any:
    """Return titles, each above its widgets."""
    children = [child for title, fields in groups.items() for child in (widgets.HTML(f"<b>{title}</b>"), *fields)]
    return widgets.VBox(children, layout=widgets.Layout(width="33%", padding="0 12px 0 0"))


class PanelForm:
    """Widgets for the parameters of a `PanelState`; `read` and `write` are each other's inverse."""

    def __init__(self, state: PanelState, gpus: int) -> None:
        self._gpus = gpus
        self._seed = state.seed
        self._chosen: dict[str, Any] = {}  # model → the strategies that were chosen when another model was taken
        self._changed: Callable[[], None] | None = None
        self._writing = False
        text, choice = widgets.Text, widgets.Dropdown
        self.graph = _field(text, "graph", "graph", "synthetic, or a folder of public files")
        # a choice of round numbers: a slider of numbers would give back what it rounds
        self.scale = _field(
            widgets.SelectionSlider,
            "scale",
            "size (1: real)",
            "of the synthetic graph; edges grow with its square",
            options=_SCALES,
        )
        self.perturbations = _field(
            text, "perturbations", "perturbations", "none draws synthetic samples; or a file of a screen"
        )
        self.num_deletions = _field(
            widgets.IntSlider, "num-deletions", "nodes deleted", "in each sample", min=0, max=10
        )
        self.model = _field(choice, "model", "model", "what is trained", options=model_names())
        self.hidden = _field(choice, "hidden", "hidden size", "the model's width H", options=[(_MODEL_DEFAULT, "none")])
        self.layers = _field(choice, "layers", "layers", "of message passing", options=[(_MODEL_DEFAULT, "none")])
        self.strategies = _field(
            widgets.SelectMultiple, "strategies", "", _STRATEGIES,  # without a label a list shows its help itself
            options=strategy_names(),
        )  # fmt: skip
        self.batch_sizes = _field(text, "batch-sizes", "batch sizes", "samples in a batch: 1,2,4")
        self.networks = _field(text, "networks", "networks", "edge types: 1,3,9 for the first n, names, auto or all")
        self.mode = _field(choice, "mode", "mode", _MODES, options=list(MODES))
        self.device = _field(
            choice, "device", "device", "auto is a GPU where there is one",
            options=["auto", "cpu", *(["cuda"] if gpus else [])],
        )  # fmt: skip
        self.ranks = _field(widgets.BoundedIntText, "ranks", "ranks", "processes that train together", min=1, max=64)
        self.dtype = _field(choice, "dtype", "dtype", "bfloat16 is autocast", options=list(DTYPES))
        self.compile = _field(widgets.Checkbox, "compile", "compile it", "run the model through torch.compile")
        self.steps = _field(widgets.IntSlider, "steps", "timed steps", "of each point", min=1, max=50)
        self.budget = _field(
            widgets.BoundedFloatText, "budget", "budget [s]", "start no point after so long; 0 for no limit",
            min=0, max=1e6,
        )  # fmt: skip
        self.retry = _field(
            widgets.Checkbox, "retry", "retry failed", "run points again that failed or ran out of memory"
        )
        self.results = _field(text, "results", "results", "the folder that rows are kept in", continuous_update=False)
        how = [self.model, self.hidden, self.layers, self.mode, self.dtype, self.device, self.ranks]
        self.box = widgets.HBox(
            [
                _column(
                    Graph=[self.graph, self.scale, self.perturbations, self.num_deletions, self.networks],
                    Sweep=[self.batch_sizes, self.steps, self.budget, self.results, self.retry],
                ),
                _column(Model=[*how, self.compile]),
                _column(Strategies=[self.strategies]),
            ],
            layout=widgets.Layout(width="100%"),
        )
        self.write(state)
        for widget in self._widgets():
            widget.observe(self._on_change, names="value")

    def _widgets(self) -> list[Any]:
        return [value for value in vars(self).values() if isinstance(value, widgets.ValueWidget)]

    def on_change(self, call: Callable[[], None]) -> None:
        """Call a function after each change that a person makes."""
        self._changed = call

    def mark(self, problem: str) -> None:
        """Outline the field that a message names first; none where it names none."""
        first = re.match(r"(?:unknown )?(\w+)", problem)
        named = first[1].rstrip("s") if first else ""  # a field of several has the plural
        for name, widget in vars(self).items():
            if isinstance(widget, widgets.ValueWidget):
                wrong = named == name.rstrip("s") or (named, name) == ("strategie", "strategies")
                widget.layout.border = f"1px solid {ERROR_COLOUR}" if wrong else _UNMARKED

    def _on_change(self, change: dict[str, Any]) -> None:
        if self._writing:
            return
        if change["owner"] is self.model:
            self._chosen[change["old"]] = self.strategies.value
            self._fit_to_model()
        if self._changed is not None:
            self._changed()

    def _fit_to_model(self) -> None:
        """Offer the strategies and sizes that the chosen model takes."""
        kind = model_of(self.model.value)
        serving = [name for name in strategy_names() if kind.served_by(strategy_of(name))]
        before = self._chosen.get(self.model.value, self.strategies.value)
        chosen = [name for name in before if name in serving] or serving[:1]
        self._writing = True
        self.strategies.options, self.strategies.value = serving, chosen
        self.strategies.rows = min(max(len(serving), 4), _MOST_ROWS)  # what is chosen is in sight
        for name, widget in (("hidden", self.hidden), ("layers", self.layers)):
            widget.disabled = name not in kind.sizes
            if widget.disabled:
                widget.value = "none"
        self._writing = False

    def write(self, state: PanelState) -> None:
        """Set the widgets to a state; a slider that does not reach a value is widened."""
        self._writing = True
        self._seed = state.seed
        self.graph.value = str(state.graph)
        points = state.points()
        scale = points[0].scale
        if scale is not None:  # a folder has its own size
            self.scale.options = sorted({*_SCALES, scale})
            self.scale.value = scale
        self.perturbations.value = str(state.perturbations)
        self.num_deletions.disabled = points[0].num_deletions is None  # the file says how many
        for slider, number in ((self.num_deletions, state.num_deletions), (self.steps, points[0].steps)):
            slider.max = max(slider.max, number)
            slider.value = number
        self.model.value = points[0].model
        for choice, value, usual in (
            (self.hidden, points[0].hidden, (16, 32, 64, 128, 256)),
            (self.layers, points[0].layers, (1, 2, 3, 4, 6)),
        ):
            sizes = sorted({*usual, *([] if value is None else [value])})
            choice.options = [(_MODEL_DEFAULT, "none"), *((str(size), size) for size in sizes)]
            choice.value = "none" if value is None else value
        self._fit_to_model()
        self._writing = True
        wanted = list(dict.fromkeys(point.strategy for point in points))
        self.strategies.options = list(dict.fromkeys([*self.strategies.options, *wanted]))
        self.strategies.value = wanted
        self.batch_sizes.value = ",".join(str(size) for size in sorted({point.batch_size for point in points}))
        self.networks.value = str(state.networks)
        self.mode.value, self.dtype.value = points[0].mode, points[0].dtype
        self.compile.value, self.retry.value = points[0].compile, state.retry
        device, ranks = ranks_of(state.gpus)
        self.device.value = "auto" if state.gpus == "auto" else device
        self.ranks.value = ranks
        self.budget.value = float(state.budget_seconds)
        self.results.value = str(state.results)
        self._writing = False

    def read(self) -> PanelState:
        """Return the state that the widgets are set to.

        **Raises:** `InputError` for several ranks on the CPU of a machine that has GPUs.
        """
        return PanelState(
            graph=self.graph.value.strip() or "synthetic",
            scale=self.scale.value,
            models=self.model.value,
            strategies=",".join(self.strategies.value),
            batch_sizes=self.batch_sizes.value,
            networks=self.networks.value,
            gpus=self._gpus_wanted(),
            mode=self.mode.value,
            dtype=self.dtype.value,
            compile=self.compile.value,
            perturbations=self.perturbations.value.strip() or "none",
            num_deletions=self.num_deletions.value,
            hidden=self.hidden.value,
            layers=self.layers.value,
            steps=self.steps.value,
            seed=self._seed,
            results=self.results.value.strip(),
            budget_seconds=self.budget.value,
            retry=self.retry.value,
        )

    def _gpus_wanted(self) -> int | str:
        ranks = int(self.ranks.value)
        if ranks == 1 and self.device.value in ("auto", "cpu"):
            return "auto" if self.device.value == "auto" else 0
        if self.device.value == "cpu" and self._gpus:
            raise InputError(f"ranks is {ranks} with device 'cpu', expected 1: here several ranks take a GPU each")
        return ranks
