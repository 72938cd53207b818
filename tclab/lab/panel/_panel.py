"""The panel: a form with a field for each parameter, Run and Stop, and tabs of what was measured."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from html import escape
from time import sleep
from typing import Any, get_args

import ipywidgets as widgets

from tclab._display import Sentences, counted
from tclab.errors import InputError
from tclab.lab._notebook import drawn_by_jupyter, has_front_end
from tclab.lab.charts._sweep_charts import SWEEP_CHARTS, throughput
from tclab.lab.panel._live_sweep import STOPPING, outlook
from tclab.lab.panel._panel_sweep import PanelSweep, Value
from tclab.lab.reports._axes import AXES, axis_sentences
from tclab.lab.reports._findings import findings
from tclab.masking import get as strategy_of
from tclab.masking import names as strategy_names
from tclab.models import get as model_of
from tclab.models import names as model_names
from tclab.sweeps._fields import declarations
from tclab.sweeps._grid import KEY, listed
from tclab.sweeps._point import Point
from tclab.sweeps._rows import Rows
from tclab.sweeps.analysis._advise import advise
from tclab.timing._advice import Advice

_RACE_SECONDS = 60.0  # of all changes together
_STYLE = "<style>.tclab-stale {opacity: 0.35}</style>"  # of results beside a field that is wrong
_REST_SECONDS = 0.3  # between two drawings: a browser takes three a second
_ERROR = "var(--jp-error-color1, #d55e00)"
_UNMARKED = "1px solid transparent"  # as wide as a mark: nothing moves when one comes
_COLUMNS = {  # title → fields; the others are behind "More"
    "Strategies": ("strategies",),
    "Swept as well": ("batch_sizes", "networks", "models"),
    "The same for every point": ("graph", "scale", "steps", "gpus", "results"),
}
_IN_SIGHT = [name for names in _COLUMNS.values() for name in names]
_TIPS = {
    "models": "What is trained; several with Ctrl or Shift.",
    "batch_sizes": "Samples in a batch, with commas between: 1,2,4.",
    "networks": "Edge types: 1,3,9 for the first n; names; or all.",
    "gpus": "auto: all there are; or how many. 0 is the CPU.",
    "results": "The folder that rows are kept in.",
    "budget_seconds": "Start no point after so many seconds; 0 for no limit.",
    "retry": "Run points again that failed or ran out of memory.",
    "hang_seconds": "End a point that takes longer.",
    "repeats": "Runs of each point, each in a process of its own.",
    "slurm": "Run as jobs of a cluster: partition:gpu,time:60.",
    "imports": "Files that register strategies or models of yours.",
}


def _strategy_tip() -> str:
    lines = (f"{name}: {(strategy_of(name).__doc__ or '').partition(chr(10))[0]}" for name in strategy_names())
    return "\n".join(["Several with Ctrl or Shift.", *lines])


class _Field:
    """The widget of one parameter, and a line below it for what is wrong with its value."""

    def __init__(self, name: str, value: Value) -> None:
        declared = {one.grid: one for one in declarations(Point).values()}.get(name)
        tips = {one.grid: one.meaning for one in declarations(Point).values()} | _TIPS | {"strategies": _strategy_tip()}
        common = {
            "description": "" if name == "strategies" else name.replace("_", " "),
            "tooltip": tips[name].replace("`", ""),
            "layout": widgets.Layout(width="auto", border=_UNMARKED),
            "style": {"description_width": "85px" if name in _IN_SIGHT else "115px"},
        }
        self.lists = name in ("strategies", "models")
        if self.lists:
            known = [*dict.fromkeys([*KEY, *strategy_names()])] if name == "strategies" else model_names()
            chosen = [str(one) for one in listed(name, value)]
            self.widget = widgets.SelectMultiple(options=[*dict.fromkeys([*known, *chosen])], value=chosen, **common)
            self.widget.rows = min(len(known), 11)
        elif declared is not None and value in get_args(declared.annotation):
            self.widget = widgets.Dropdown(options=get_args(declared.annotation), value=value, **common)
        elif isinstance(value, bool):
            self.widget = widgets.Checkbox(value=value, indent=True, **common)
        else:
            self.widget = widgets.Text(value=value, continuous_update=name != "results", **common)
        self.widget.add_class(f"tclab-{name.replace('_', '-')}")
        self._problem = widgets.HTML(layout=widgets.Layout(display="none", margin="0 0 4px 8px"))
        self.box = widgets.VBox([self.widget, self._problem])

    @property
    def value(self) -> Value:
        """The parameter, as `PanelSweep.parameters` has it."""
        value = self.widget.value
        return ",".join(value) if self.lists else value if isinstance(value, bool) else value.strip()

    def mark(self, problem: str) -> None:
        """Frame the widget and say what is wrong; with no text, remove both."""
        self.widget.layout.border = f"1px solid {_ERROR}" if problem else _UNMARKED
        self._problem.value = _error_html(problem)
        self._problem.layout.display = "" if problem else "none"


class PanelView:
    """The widgets of a panel, which show it and what it measures.

    Fields are read in the kernel's main thread; a sweep's progress comes in its own; charts, tables and findings,
    which take up to seconds, are made in a third, so that Stop is heard at any time.
    """

    def __init__(self, panel: PanelSweep) -> None:
        self.panel = panel
        self.fields = {name: _Field(name, value) for name, value in panel.parameters.items()}
        self.run_button = _button("Run", "play", "primary", "measure the points that the results folder lacks")
        self.again_button = _button("Measure again", "refresh", "", "one more run of each point: repeats tell more")
        self.race_button = _button("Race", "flag-checkered", "", "race the changes that may pay, a minute in all")
        self.stop_button = _button("Stop", "stop", "danger", "end the point under way; what is measured is kept")
        self.bar = widgets.IntProgress(layout=widgets.Layout(width="200px"))
        self.status, self.message = widgets.Label(), widgets.HTML()
        self.answer, self.table, self.findings = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.advice, self.offer = widgets.HTML(), widgets.Label()  # what may pay, and in a line how many changes
        self.choice = widgets.ToggleButtons(options=list(SWEEP_CHARTS), style={"button_width": "auto"})
        self.chart = widgets.Output(layout=widgets.Layout(min_height="400px", overflow="auto"))
        self.line = widgets.Textarea(rows=4, layout=widgets.Layout(width="auto"))
        self.code = widgets.Textarea(rows=14, layout=widgets.Layout(width="auto"))
        self.box = self._laid_out()
        self._problem, self._racing = "", False
        self._advice: Advice | None = None
        self._advised: tuple[Any, ...] = ()  # when the rows were measured that it is of
        self._drawing, self._draw_waits = threading.Lock(), False
        for field in self.fields.values():
            field.widget.observe(self._on_change, names="value")
        self.choice.observe(lambda _: self._draw_soon(), names="value")
        self.run_button.on_click(lambda _: self._run())
        self.stop_button.on_click(lambda _: self._stop())
        self.again_button.on_click(lambda _: self._measure_again())
        self.race_button.on_click(lambda _: self._race())
        if panel.sweep is not None and panel.running:
            panel.sweep.listen(self._on_progress)
        self._offer_strategies()
        self._on_progress()

    def _laid_out(self) -> Any:
        for name in ("status", "message", "answer", "table", "findings", "chart", "advice", "offer"):
            getattr(self, name).add_class(f"tclab-{name}")
        more = [name for name in self.fields if name not in _IN_SIGHT]
        self._more = widgets.Accordion([_grid(self._boxes(more))], titles=("More",), selected_index=None)
        form = widgets.HBox([_column(title, self._boxes(names)) for title, names in _COLUMNS.items()])
        tabs = widgets.Tab(
            [widgets.VBox([self.choice, self.chart]), self.table, self.findings, self.advice,
             widgets.VBox([self.line, self.code])],
            titles=("Charts", "Table", "Findings", "Advice", "papermill, Python"),
        )  # fmt: skip
        wrapped = widgets.Layout(flex_flow="row wrap")
        buttons = widgets.HBox([self.run_button, self.stop_button, self.bar, self.status], layout=wrapped)
        next_steps = widgets.HBox([self.again_button, self.race_button, self.offer], layout=wrapped)
        self._results = widgets.VBox([self.answer, next_steps, tabs])
        return widgets.VBox([widgets.HTML(_STYLE), form, self._more, buttons, self.message, self._results])

    def _boxes(self, names: Sequence[str]) -> list[Any]:
        return [self.fields[name].box for name in names]

    # ---- fields

    def _on_change(self, change: dict[str, Any]) -> None:
        if change["owner"] is self.fields["models"].widget:
            self._offer_strategies()
        self.panel.parameters = {name: field.value for name, field in self.fields.items()}
        self._check()

    def _offer_strategies(self) -> None:
        """Offer the strategies that serve one of the chosen models, and choose the first where none is left."""
        kinds = [model_of(name) for name in self.fields["models"].widget.value if name in model_names()]
        widget = self.fields["strategies"].widget
        serving = [name for name in strategy_names() if any(kind.served_by(strategy_of(name)) for kind in kinds)]
        chosen = [name for name in widget.value if name in serving or name == "auto"]
        if kinds:
            widget.options = [*(["auto"] if "auto" in chosen else []), *serving]
            widget.value = chosen or serving[:1]

    def _check(self) -> None:
        """Say what is wrong with a field; or show the sweep that they describe."""
        try:
            self.panel.points()
        except InputError as error:
            self._show_problem(error)
        else:
            self._show_problem(None)
            self._draw_soon()

    def _show_problem(self, error: BaseException | None) -> None:
        """Show an error at the field that it names; below the buttons where it names none."""
        self._problem = problem = "" if error is None else str(error)
        names = {one.name: one.grid for one in declarations(Point).values()} | {"network": "networks"}
        name = getattr(error, "name", None)
        named = names.get(name, name)
        for name, field in self.fields.items():
            field.mark(problem if name == named else "")
            if name == named and name not in _IN_SIGHT:
                self._more.selected_index = 0
        self.message.value = "" if named in self.fields else _error_html(problem)
        (self._results.add_class if problem else self._results.remove_class)("tclab-stale")
        self._show_buttons()

    def _show_buttons(self) -> None:
        running = self.panel.running
        self.run_button.disabled = running or self._racing or bool(self._problem)
        self.again_button.disabled = self.run_button.disabled or self._advice is None
        self.race_button.disabled = self.run_button.disabled or not self._able()
        self.stop_button.disabled = not running
        for field in self.fields.values():
            field.widget.disabled = running  # fields, status and chart are of one sweep

    # ---- running

    def _run(self) -> None:
        try:
            self.panel.start(self._on_progress)
        except InputError as error:
            self._show_problem(error)
        else:
            self._on_progress()

    def _measure_again(self) -> None:
        repeats = self.fields["repeats"].widget
        repeats.value = str(int(repeats.value) + 1)
        self._run()

    def _able(self) -> int:
        """Return how many changes can be raced with the present one."""
        every = () if self._advice is None else (*self._advice.suggestions, *self._advice.unsure)
        return sum(one.race is not None and one.measured is None for one in every)

    def _race(self) -> None:
        self._racing, self.offer.value = True, f"racing for {_RACE_SECONDS:g} s, beside making the candidates ready"
        self._show_buttons()
        threading.Thread(target=self._race_once, daemon=True).start()

    def _race_once(self) -> None:
        assert self._advice is not None
        try:
            self._advice = self._advice.measure(budget_seconds=_RACE_SECONDS, progress=False)
        except Exception as error:  # of a thread: it would be shown nowhere else
            self.message.value = _error_html(f"{type(error).__name__}: {error}")
        self._racing = False
        self._show_advice()

    def _show_advice(self) -> None:
        """Show the advice, and offer a race of what may pay."""
        able, advice = self._able(), self._advice
        raced = [] if advice is None else [one.measured.sentence for one in advice.suggestions if one.measured]
        changes = counted(able, "change")
        self.offer.value = f"{changes} may pay: race {'it' if able == 1 else 'them'}" if able else " ".join(raced[:1])
        self.advice.value = "" if advice is None else advice._repr_html_()
        self._show_buttons()

    def _stop(self) -> None:
        if self.panel.sweep is not None:
            self.stop_button.disabled, self.status.value = True, STOPPING  # a click is seen before the point has ended
            self.panel.sweep.stop()

    def _on_progress(self) -> None:
        """Show how far a sweep is, and have the rest drawn soon."""
        sweep = self.panel.sweep
        if sweep is not None:
            self.bar.max, self.bar.value = len(sweep.points), len(sweep.tables)
            self.status.value = sweep.status()
            self._show_problem(sweep.error)
        self._draw_soon()

    # ---- drawing

    def _draw_soon(self) -> None:
        """Draw in a thread of its own; requests that come while one is drawn are served by one more."""
        if not self._draw_waits:
            self._draw_waits = True
            threading.Thread(target=self._draw_once, daemon=True).start()

    def _draw_once(self) -> None:
        with self._drawing:
            self._draw_waits = False
            try:
                self._draw()
            except Exception as error:  # of a thread: it would be shown nowhere else
                self.message.value = _error_html(f"{type(error).__name__}: {error}")
            sleep(_REST_SECONDS)

    def _draw(self) -> None:
        """Show the chart and the table of what is measured; at rest also the findings, the first as the answer."""
        panel, running = self.panel, self.panel.running  # asked before the rows are: what comes after is drawn again
        self.line.value, self.code.value = panel.papermill(), panel.python()
        if not panel.shows_sweep:
            points = panel.points()
            self.status.value = outlook(points, panel.folder)
            self.bar.max, self.bar.value = len(points), len(panel.tables())
        rows = panel.rows()
        chart = drawn_by_jupyter(SWEEP_CHARTS[self.choice.value](rows).to_dict())
        self.chart.outputs = ({"output_type": "display_data", "data": chart, "metadata": {}},)
        self.table.value = f'<div style="line-height:1.4">{Rows(rows)._repr_html_()}</div>' if len(rows) else ""
        found = [] if running or rows.empty else findings(rows)
        answers = [sentence for by in ("strategy", *AXES) for sentence in axis_sentences(rows, by)] if found else []
        bold = "<br>".join(map(escape, dict.fromkeys(answers or found[:1])))
        self.answer.value = f'<div style="line-height:1.4"><b>{bold}</b></div>' if found else ""
        self.findings.value = Sentences([*answers, *found])._repr_html_()
        measured = tuple(rows["measured_at"]) if found else ()
        if measured != self._advised:  # or a race's results would be gone
            self._advice, self._advised = (advise(rows) if found else None), measured
            self._show_advice()


def _error_html(problem: str) -> str:
    return f'<div style="color:{_ERROR};line-height:1.4">{escape(problem)}</div>' if problem else ""


def _button(text: str, icon: str, style: str, tip: str) -> Any:
    layout = widgets.Layout(width="auto", min_width="100px")
    made = widgets.Button(description=text, icon=icon, button_style=style, tooltip=tip, layout=layout)
    made.add_class(f"tclab-{text.lower().replace(' ', '-')}")
    return made


def _column(title: str, boxes: list[Any]) -> Any:
    return widgets.VBox([widgets.HTML(f"<b>{title}</b>"), *boxes], layout=widgets.Layout(width="33%"))


def _grid(boxes: list[Any]) -> Any:
    return widgets.GridBox(boxes, layout=widgets.Layout(grid_template_columns="repeat(auto-fill, minmax(300px, 1fr))"))


class Panel(PanelSweep):
    """A sweep that a person sets up, runs, watches and stops in a notebook.

    `await panel.show()` shows it in an interactive front end. Without one it runs the sweep, prints what was found and
    shows one chart. Rows are kept in the results folder, the same as a headless sweep's. The panel shows those that
    the folder has of the points that its fields describe; Run measures the others.

    **Arguments:**

    - `parameters`: those of `notebooks/sweep.ipynb`, by the same names: any of `tclab.grid`; `results`,
      `budget_seconds` (0: no limit) and the other options of `tclab.sweep`; and `imports`, files that register
      strategies or models of one's own, with commas between.

    **Raises:** `InputError` that names the value, the expected values and the nearest one that exists.
    """

    async def show(self, live: bool | None = None) -> None:
        """Show the panel; without an interactive front end, run the sweep and show what was found and its chart.

        **Arguments:**

        - `live`: whether there is an interactive front end; detected unless given. JupyterLab, Jupyter Notebook and
          VS Code are known; any other front end with widgets may need `live=True`.

        **Raises:** headless, what the sweep raised.
        """
        from IPython.display import display

        if has_front_end() if live is None else live:
            self.take_over()
            display(PanelView(self).box)
            return
        rows = await self.start()
        display(findings(rows))
        display(throughput(rows))
