"""The panel: the sweep that its parameters describe, and a form with a field for each, Run, Stop, Race and tabs."""

from __future__ import annotations

import asyncio
import atexit
import json
import shlex
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from html import escape
from pathlib import Path
from time import monotonic, perf_counter_ns, sleep
from typing import Any, get_args

import ipywidgets as widgets
import pandas as pd
import pyarrow as pa

from tclab import masking, models
from tclab._display import Sentences, bullets, bytes_text, counted
from tclab._io import atomic_write, writing
from tclab._limits import memory_available_bytes
from tclab.errors import InputError, check_known
from tclab.lab._notebook import drawn_by_jupyter, has_front_end, import_own, project_path
from tclab.lab.charts._sweep_charts import SWEEP_CHARTS, throughput
from tclab.lab.reports._cells import records
from tclab.lab.reports._findings import AXES, axis_sentences, findings
from tclab.sweeps._advise import advise
from tclab.sweeps._compare import undisturbed
from tclab.sweeps._fields import declarations, text_value
from tclab.sweeps._grid import KEY, grid, listed
from tclab.sweeps._point import Point, Points, points_of, varying_fields
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps._progress import OPTIONS, Progress, SweepOptions
from tclab.sweeps._rows import Results, Rows, frame, point_of
from tclab.sweeps._sweep import Foresight, rough, sweep
from tclab.timing._advice import Advice, Suggestion
from tclab.timing._environment import gpu_free_bytes
from tclab.timing._verdict import sentence_of

STOPPING = "stopping: the setting under way takes a moment to end"


def outlook(points: Iterable[Point], results: Path, repeats: int) -> str:
    """Return in words how many of some points a results folder has, and what the others take; how many cannot run.

    Their time is foretold by the rows that there are, and is a guess without any, as their memory is.
    """
    folder, every, foresight = Results(results), list(points), Foresight()
    reasons = [reason for point in every if (reason := point.skipped())]
    able = [(resolve(point), folder.read_point(point, i)) for i in range(repeats)
            for point in every if point.skipped() is None]  # fmt: skip
    for point, rows in able:
        if rows is not None:
            foresight.learn(point, rows)
    left = [point for point, rows in able if rows is None]
    words = [
        f"{len(able) - len(left)} of {counted(repeats * len(every), 'setting' if repeats == 1 else 'run')} measured"
    ]
    guessed = [one for point in left if (one := rough(point)) is not None]
    took = [seconds for point in left if (seconds := foresight.seconds(point)) is not None]
    if took or guessed:
        about = "the others take about" if took else "they take roughly"
        words.append(f"{about} {timedelta(seconds=round(sum(took or [one[0] for one in guessed])))}")
    if guessed:
        free = memory_available_bytes() if left[0].device == "cpu" else gpu_free_bytes()
        there = "" if free is None else f" ({bytes_text(free)} free)"
        words.append(f"at most about {bytes_text(max(one[1] for one in guessed))} of memory{there}")
    if reasons:
        words.append(f"{len(reasons)} cannot run ({reasons[0].removeprefix('skipped: ')})")
    return " · ".join(words)


class LiveSweep:
    """A sweep in a background thread: `rows = await LiveSweep(points, results=…).start()`.

    It prints a line a point. Interrupting the cell stops it, and keeps what was measured.

    **Arguments:** as for `tclab.sweep`; `budget_seconds` does not count on Slurm, where `time` limits each job.

    **Raises:** `InputError` for an option that is unknown, or a value that it cannot have.
    """

    def __init__(self, points: Iterable[Point] | Point, *, results: str | Path, **options: Any) -> None:
        self.points = points_of(points)
        self.results = Path(results)
        self.last: Progress | None = None
        self.error: BaseException | None = None
        self.tables: list[pa.Table] = []  # the rows of each point so far, of this run or an earlier one
        check_known("option of a sweep", OPTIONS, *options)
        self._options = options
        self._local = options.get("slurm") in (None, "none")
        if not self._local:
            options["budget_seconds"] = None
        checked = SweepOptions(**options)  # a wrong value is said here, not in the thread
        self._repeats = checked.repeats
        self.runs = len(self.points) * checked.repeats
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._rows = frame()
        self._begin: float | None = None
        self._end: float | None = None
        # called after each point and at the end, in the sweep's thread, instead of printing a line
        self.listener: Callable[[], None] | None = None

    def start(self) -> LiveSweep:
        """Start the thread, and return at once."""
        self._begin = monotonic()
        atexit.register(self._close)
        self._thread.start()
        return self

    def _close(self) -> None:
        """Stop before Python ends, which hangs where a thread is within pyarrow then."""
        self.stop()
        self._thread.join(10.0)

    @property
    def running(self) -> bool:
        """Whether the sweep has been started and is not over."""
        return self._begin is not None and self._end is None

    def stop(self) -> None:
        """End the point under way, start no other and cancel jobs; what has been measured is kept.

        Points of other sweeps go on.
        """
        self._stop.set()

    def status(self) -> str:
        """Return how far the sweep is, the time that is left or that it took, and what to do about points left."""
        if self._begin is None and not self._local:
            return counted(len(self.points), "setting")
        if self._begin is None:
            return outlook(self.points, self.results, self._repeats)
        done = f"{len(self.tables)} of {counted(self.runs, 'setting' if self.runs == len(self.points) else 'run')}"
        if self._end is None:
            left = None if self.last is None else self.last.seconds_left
            first = "starting: the first setting takes longest"
            return f"{done} · {first if left is None else f'about {timedelta(seconds=round(left))} left'}"
        took = timedelta(seconds=round(self._end - self._begin))
        if self.error is not None:
            return f"{done} in {took}, then an error"
        waiting = [each for each in self._rows["status"].astype(str) if each.startswith("not run: ")]
        if not waiting:  # also where a stop came after the last point, and where a point without a time is not repeated
            return f"{done} in {took}"
        why = "Stopped" if self._stop.is_set() else waiting[0].removeprefix("not run: ").capitalize()
        return f"{why}: {done} in {took}; run again to continue"

    def rows(self) -> pd.DataFrame:
        """Return the rows of the points so far."""
        return frame(*self.tables)

    def join(self) -> pd.DataFrame:
        """Wait for the end of the sweep and return its rows, those of points that were not run among them.

        **Raises:** what the sweep raised.
        """
        assert self._begin is not None, "call start() first"
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self._rows

    def __await__(self) -> Generator[Any, None, pd.DataFrame]:
        try:
            while self._thread.is_alive():  # an executor's thread would keep Python from ending
                yield from asyncio.sleep(0.05).__await__()
            return self.join()
        except asyncio.CancelledError:  # the kernel was interrupted: the thread would go on without its cell
            self.stop()
            raise

    def _run(self) -> None:
        try:
            if self.listener is None and self._local:
                print(outlook(self.points, self.results, self._repeats), flush=True)
            self._rows = sweep(
                self.points, results=self.results, progress=self._on_progress, stop=self._stop, **self._options
            )
        except BaseException as error:
            self.error = error
        finally:
            atexit.unregister(self._close)
            self._end = monotonic()
            self._tell(self.status())

    def _on_progress(self, progress: Progress) -> None:
        self.tables.append(progress.rows)
        self.last, self.runs = progress, progress.total
        self._tell(progress)

    def _tell(self, line: object) -> None:
        (self.listener or (lambda: print(line, flush=True)))()


# ---- the panel

_OF_SWEEP = {"results": "runs/explore/rows", "budget_seconds": 0, "retry": False, "repeats": 1}
_PATHS = ("graph", "perturbations")  # parameters that may be
# a minute on two cores, and enough for a verdict
_SMALL = {
    "scale": 0.1, "strategies": "subgraph,edge_mask,node_mask,delta", "batch_sizes": "1,2,4", "networks": 9,
    "gpus": "auto", "steps": 12,
}  # fmt: skip
# by the name of its parameter
_DECLARED = {declared.grid: declared for declared in declarations(Point).values() if declared.grid != "ranks"}
_SAVED = "panel.json"  # in the results folder: what the last sweep of a panel was set to
Value = str | bool


def parameter_defaults() -> dict[str, Value]:
    """Return the parameters of a panel, each with its value unless given, as a field of the form holds it."""
    of_point = {name: declared.default for name, declared in _DECLARED.items() if declared.panel}
    return {name: _as_typed(value) for name, value in {**of_point, **_SMALL, **_OF_SWEEP}.items()}


def known_parameters() -> tuple[str, ...]:
    """Return all that a panel takes: the parameters of its form, any other of `tclab.grid`, options of a sweep."""
    return tuple(dict.fromkeys([*parameter_defaults(), *_DECLARED, *OPTIONS, "imports"]))


def _as_typed(value: Any) -> Value:
    """Return a value as text with commas between several, which `tclab.grid` reads; a switch as a `bool`."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    text = "none" if value is None else str(value)
    return text.lower() == "true" if text.lower() in ("true", "false") else text


def settings_of(rows: pd.DataFrame) -> dict[str, str]:
    """Return the parameters of the points that some rows are of, as a panel's fields have them."""
    steps = rows[rows["stage"] == "step"]
    points = [point_of(row) for row in records(steps.dropna(subset="network_names"))]
    if not points:
        return {}
    counts = sorted({int(count) for count in steps["networks"].dropna()})
    found: dict[str, Any] = {"networks": counts, "gpus": 0 if points[0].device == "cpu" else points[0].ranks}
    for name in {*varying_fields(points), *points[0].changed()} - {"networks", "device", "ranks", "loss"}:
        declared = declarations(Point)[name]
        found[declared.grid] = list(dict.fromkeys(declared.cell(getattr(point, name)) for point in points))
    return {name: str(_as_typed(value)) for name, value in found.items()}


_last_started: dict[Path, Panel] = {}  # of this kernel, for each results folder


class Panel:
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

    def __init__(self, **parameters: Any) -> None:
        check_known("parameter", known_parameters(), *parameters)
        self._given = {name: _as_typed(value) for name, value in parameters.items()}
        # those of its fields, once it is shown
        self.parameters: dict[str, Value] = {**parameter_defaults(), **self._given}
        self._imports = import_own(str(self.parameters.get("imports", "")))
        self.points()
        self.sweep: LiveSweep | None = None  # the last that was started
        self.taken: list[str] | None = None  # when the rows were measured that a cell took last
        self.on_taken: Callable[[], object] = lambda: None  # called whenever one does
        self._swept: dict[str, Value] = {}  # the parameters that it was started with

    @property
    def folder(self) -> Path:
        """The results folder, wherever the kernel was started; `InputError` where none is named."""
        if not str(self.parameters["results"]).strip():
            raise InputError(f"results is {self.parameters['results']!r}, expected a folder", name="results")
        return project_path(str(self.parameters["results"]))

    @property
    def running(self) -> bool:
        """Whether a sweep of the panel is under way."""
        return self.sweep is not None and self.sweep.running

    @property
    def shows_sweep(self) -> bool:
        """Whether its parameters are still those that its last sweep was started with."""
        return self.sweep is not None and self.parameters == self._swept

    def points(self) -> Points:
        """Return the points that its parameters describe, by the same call that the sweep notebook makes.

        **Raises:** `InputError` for a value that a parameter cannot have, those of the sweep among them.
        """
        _ = self.folder, self._options()
        given = self._grid()
        return grid(**given, **{name: project_path(self.parameters[name]) for name in _PATHS})

    def _grid(self) -> dict[str, Any]:
        others = (*OPTIONS, *_PATHS, "results", "imports")
        return {name: value for name, value in self.parameters.items() if name not in others}

    def _options(self) -> dict[str, Any]:
        given = {name: text_value(self.parameters[name]) for name in OPTIONS if name in self.parameters}
        options = SweepOptions(**given)
        return {name: getattr(options, name) for name in given}

    def papermill(self, out: str = "out.ipynb") -> str:
        """Return the papermill command that runs the same points, from the project's folder."""
        words = ["papermill", "notebooks/sweep.ipynb", out]
        for name, value in self.parameters.items():
            # papermill makes numbers of what looks like one: a folder called 2024 has to be given raw
            words += ["-r" if name in (*_PATHS, "results", "imports") else "-p", name, str(value)]
        return shlex.join(words)

    def python(self) -> str:
        """Return Python code that runs the same points, in the project's folder."""
        typed = {name: text_value(str(value)) for name, value in self._grid().items()}
        typed |= {name: self.parameters[name] for name in _PATHS}  # a folder may be called 2024
        given = "".join(f"    {name}={value!r},\n" for name, value in typed.items())
        options = {"results": self.parameters["results"], **self._options()}
        of_sweep = ", ".join(f"{name}={value!r}" for name, value in options.items())
        own = "".join(f"tclab.lab.import_file({path!r})\n" for path in self._imports)
        return f"import tclab\n\n{own}points = tclab.grid(\n{given})\nrows = tclab.sweep(points, {of_sweep})\n"

    def tables(self) -> list[pa.Table]:
        """Return the rows of each point that has some: of its sweep so far, or those that its results folder keeps."""
        if self.sweep is not None and self.shows_sweep:
            return list(self.sweep.tables)
        results = Results(self.folder)
        runs = [(point, repeat) for repeat in range(self._options()["repeats"]) for point in self.points()]
        return [rows for run in runs if (rows := results.read_point(*run)) is not None]

    def rows(self) -> pd.DataFrame:
        """Return the rows that the panel shows, for a cell: those of its points that have been measured."""
        rows = self.measured()
        self.taken = list(rows["measured_at"].astype(str))
        self.on_taken()
        return rows

    def measured(self) -> pd.DataFrame:
        """Return the rows that the panel shows."""
        return frame(*self.tables())

    def take_over(self) -> None:
        """Go on where the last panel with this results folder was left, so that no restart loses anything.

        That is the sweep that this kernel still runs into the folder; or the fields of the last sweep, by a panel
        whose cell had the same parameters, or for a cell that names the folder alone. Such a cell takes those of the
        folder's rows where no panel measured them.
        """
        before = _last_started.get(self.folder)
        if before is not None and before.running:
            self.sweep, self._swept, self.parameters = before.sweep, before._swept, before.parameters
            return
        alone = set(self._given) <= {"results", "imports"}
        with suppress(OSError, ValueError, TypeError, KeyError):  # a damaged file, or settings that cannot be here
            if (file := self.folder / _SAVED).exists():
                saved = json.loads(file.read_text())
                settings = saved["parameters"] if alone or saved["given"] == self._given else {}
            else:
                settings = settings_of(Results(self.folder).frame()) if alone and self.folder.is_dir() else {}
            self.parameters = Panel(**{**self.parameters, **settings, "results": self.parameters["results"]}).parameters

    def start(self, listener: Callable[[], None] | None = None) -> LiveSweep:
        """Start a sweep of its points into its results folder, and return at once; points that are kept are read.

        **Arguments:**

        - `listener`: as `LiveSweep.listener`.

        **Raises:** `InputError` for a value out of its range, or a folder that cannot be written or that another kernel
        sweeps into.
        """
        points, folder = self.points(), Results(self.folder)
        with folder.swept():  # nobody else's
            pass
        with writing("results", folder.folder):
            saved = {"given": self._given, "parameters": self.parameters}
            atomic_write(folder.folder / _SAVED, json.dumps(saved, indent=1))
        self.sweep = LiveSweep(points, results=folder.folder, **self._options())
        self._swept = dict(self.parameters)
        self.sweep.listener = listener
        _last_started[self.folder] = self
        return self.sweep.start()

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


# ---- its widgets

_RACE_SECONDS, _RACE_STEPS = 20.0, 100  # the least that a race of two takes: seconds, steps of the slower
_START_SECONDS = 15.0  # in which the processes of a race start
# results beside a field that is wrong; lines of text as near as those of the notebook; no chart wider than the panel
_STYLE = """<style>.tclab-stale {opacity: 0.35} .tclab-text, .tclab-text * {line-height: 1.4 !important}
.tclab-chart svg.marks {max-width: 100%; height: auto}</style>"""
_REST_SECONDS = 0.3  # between two drawings: a browser takes three a second
_ERROR = "var(--jp-error-color1, #d55e00)"
_BELOW = "The cells below show other rows: run them again, from the one with panel.rows() on."
_UNMARKED = "1px solid transparent"  # as wide as a mark: nothing moves when one comes
_COLUMNS = {  # title → fields; the others are behind "More"
    "Strategies": ("strategies",),
    "Swept as well": ("batch_sizes", "networks", "models"),
    "The same for every setting": ("graph", "scale", "steps", "gpus", "results"),
}
_IN_SIGHT = [name for names in _COLUMNS.values() for name in names]
_TIPS = {
    "models": "What is trained; several with Ctrl or Shift.",
    "batch_sizes": "Samples in a batch, with commas between: 1,2,4.",
    "networks": "Edge types: 1,3,9 for the first n; names; or all.",
    "gpus": "auto: all there are; or how many. 0 is the CPU.",
    "imports": "Files that register strategies or models of yours.",
}


def _strategies() -> list[str]:
    """Return the names of all strategies, those that matter first: a list shows eleven."""
    return list(dict.fromkeys([*KEY, *masking.names()]))


class _Field:
    """The widget of one parameter, and a line below it for what is wrong with its value."""

    def __init__(self, name: str, value: Value) -> None:
        declared = _DECLARED.get(name)
        tips = {grid_name: one.meaning for grid_name, one in _DECLARED.items()} | bullets(sweep.__doc__) | _TIPS
        common = {
            "description": "" if name == "strategies" else name.replace("_", " "),
            "tooltip": tips[name].replace("`", ""),
            "layout": widgets.Layout(width="auto", border=_UNMARKED),
            "style": {"description_width": "85px" if name in _IN_SIGHT else "115px"},
        }
        self.lists = name in ("strategies", "models")
        if self.lists:
            known = models.names()
            if name == "strategies":
                known = _strategies()
                lines = (f"{one}: {(masking.get(one).__doc__ or '').partition(chr(10))[0]}" for one in known)
                common["tooltip"] = "\n".join(["Several with Ctrl or Shift.", *lines])
            chosen = [str(one) for one in listed(name, value)]
            self.widget = widgets.SelectMultiple(options=[*dict.fromkeys([*known, *chosen])], value=chosen, **common)
            self.widget.rows = min(len(known) + 1, 11)  # a bar below takes one
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
        """The parameter, as `Panel.parameters` has it."""
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

    def __init__(self, panel: Panel) -> None:
        self.panel = panel
        self.fields = {name: _Field(name, value) for name, value in panel.parameters.items()}
        self.run_button = _button("Run", "play", "primary", "measure the settings that the results folder lacks")
        self.again_button = _button("Measure again", "refresh", "", "one more run of each setting: repeats tell more")
        self.race_button = _button("Race", "flag-checkered", "", "race what may pay with the present setting, by turns")
        self.stop_button = _button("Stop", "stop", "danger", "end the sweep or the race; what is measured is kept")
        self.bar = widgets.IntProgress(layout=widgets.Layout(width="200px"))
        self.status, self.message = widgets.Label(), widgets.HTML()
        self.answer, self.table, self.findings = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.below = widgets.Label()  # that the cells below have other rows
        self.advice, self.offer = widgets.HTML(), widgets.HTML()  # what may pay; how many changes, and what races said
        self.choice = widgets.ToggleButtons(options=list(SWEEP_CHARTS), style={"button_width": "auto"})
        self.chart = widgets.Output(layout=widgets.Layout(min_height="400px", overflow="auto"))
        self.line = widgets.Textarea(rows=4, layout=widgets.Layout(width="auto"))
        self.code = widgets.Textarea(rows=14, layout=widgets.Layout(width="auto"))
        self.box = self._laid_out()
        self._problem, self._racing, self._race_stops = "", False, threading.Event()
        self._advice: Advice | None = None
        self._advised: tuple[Any, ...] = ()  # when the rows were measured that it is of
        self._raced: dict[tuple[Any, ...], Advice] = {}  # those rows → the advice with what races said
        self._least_seconds = _RACE_SECONDS
        self._measured: list[str] = []  # when the rows were that it shows
        panel.on_taken = self._show_below
        self._drawing, self._draw_waits = threading.Lock(), False
        for field in self.fields.values():
            field.widget.observe(self._on_change, names="value")
        self.choice.observe(lambda _: self._draw_soon(), names="value")
        self.run_button.on_click(lambda _: self._run())
        self.stop_button.on_click(lambda _: self._stop())
        self.again_button.on_click(lambda _: self._measure_again())
        self.race_button.on_click(lambda _: self._race())
        if panel.sweep is not None and panel.running:
            panel.sweep.listener = self._on_progress
        self._offer_strategies()
        self._on_progress()

    def _laid_out(self) -> Any:
        for name in ("status", "message", "answer", "table", "findings", "chart", "advice", "offer", "below"):
            getattr(self, name).add_class(f"tclab-{name}").add_class("tclab-text")
        third, wide = widgets.Layout(width="33%"), "repeat(auto-fill, minmax(300px, 1fr))"
        columns = {title: [self.fields[name].box for name in names] for title, names in _COLUMNS.items()}
        form = widgets.HBox([widgets.VBox([widgets.HTML(f"<b>{title}</b>"), *boxes], layout=third)
                             for title, boxes in columns.items()])  # fmt: skip
        more = [field.box for name, field in self.fields.items() if name not in _IN_SIGHT]
        more_box = widgets.GridBox(more, layout=widgets.Layout(grid_template_columns=wide))
        self._more = widgets.Accordion([more_box], titles=("More",), selected_index=None)
        tabs = widgets.Tab(
            [widgets.VBox([self.choice, self.chart]), self.table, self.findings, self.advice,
             widgets.VBox([self.line, self.code])],
            titles=("Charts", "Table", "Findings", "Advice", "Code"),
        )  # fmt: skip
        wrapped = widgets.Layout(flex_flow="row wrap")
        buttons = widgets.HBox([self.run_button, self.stop_button, self.bar, self.status], layout=wrapped)
        next_steps = widgets.HBox([self.again_button, self.race_button, self.offer, self.below], layout=wrapped)
        self._results = widgets.VBox([self.answer, next_steps, tabs])
        return widgets.VBox([widgets.HTML(_STYLE), form, self._more, buttons, self.message, self._results])

    # ---- fields

    def _on_change(self, change: dict[str, Any]) -> None:
        if change["owner"] is self.fields["models"].widget:
            self._offer_strategies()
        self.panel.parameters = {name: field.value for name, field in self.fields.items()}
        self._check()

    def _offer_strategies(self) -> None:
        """Offer the strategies that serve one of the chosen models, and choose the first where none is left."""
        kinds = [models.get(name) for name in self.fields["models"].widget.value if name in models.names()]
        widget = self.fields["strategies"].widget
        serving = [name for name in _strategies() if any(kind.served_by(masking.get(name)) for kind in kinds)]
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
        name = str(getattr(error, "name", None))
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
        self.stop_button.disabled = not (running or self._racing)
        for field in self.fields.values():
            field.widget.disabled = running or self._racing  # fields, status and chart are of one sweep

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

    def _able(self) -> list[Suggestion]:
        """Return the changes that no race has decided, and that one with the present setting may decide."""
        every = () if self._advice is None else (*self._advice.suggestions, *self._advice.unsure)
        return [one for one in every if one.race and (one.measured is None or one.measured.needs_seconds)]

    def _seconds(self, one: Suggestion) -> float:
        """Return how long the race of a change has to be to decide, as far as is known."""
        return max(self._least_seconds, (one.measured and one.measured.needs_seconds) or 0.0)

    def _race(self) -> None:
        self._racing, self.message.value = True, ""
        self._race_stops.clear()
        self._show_buttons()
        threading.Thread(target=self._race_once, daemon=True).start()

    def _race_once(self) -> None:
        able = self._able()
        for i, change in enumerate(able, start=1):
            seconds = self._seconds(change)
            words = f"racing {change.change} ({i} of {len(able)}) for {timedelta(seconds=round(seconds))}"
            self.offer.value = escape(f"{words} once its processes have started")
            with self._shown():
                assert self._advice is not None
                assert change.race is not None
                pair = change.race(budget_seconds=seconds, clock=self._race_clock)
                if pair.kept or not self._race_stops.is_set():
                    self._advice = self._raced[self._advised] = self._advice.with_race(change, pair)
            if self._race_stops.is_set():
                break
        with self._drawing:  # which shows the advice, too
            self._racing = False
            self._show_advice()

    def _race_clock(self) -> int:
        """Return nanoseconds; a race reads them all the time, and is to end as by Ctrl-C, with what it measured."""
        if self._race_stops.is_set():
            raise KeyboardInterrupt
        return perf_counter_ns()

    def _show_advice(self) -> None:
        """Show the advice and what races said, and offer a race of what may pay."""
        able, advice = self._able(), self._advice
        tried = () if advice is None else advice.suggestions
        lines = [f"{one.change}: {sentence_of(one.measured).partition(': ')[2]}" for one in tried if one.measured]
        if able:
            seconds = timedelta(seconds=round(sum(_START_SECONDS + self._seconds(one) for one in able)))
            again = " again" * any(one.measured is not None for one in able)
            it = "it" if len(able) == 1 else "them"
            lines.append(f"{counted(len(able), 'change')} may pay: race {it}{again}, about {seconds}")
        self.offer.value = "<br>".join(map(escape, lines))
        self.advice.value = "" if advice is None else advice._repr_html_()
        self._show_buttons()

    def _show_below(self) -> None:
        """Say at rest if the cells below have other rows than the panel shows: nothing else would."""
        stale = self.panel.taken not in (None, self._measured) and not self.panel.running
        self.below.value = _BELOW * stale

    def _stop(self) -> None:
        self.stop_button.disabled = True  # a click is seen before the point or the round has ended
        if self._racing:
            self._race_stops.set()
            self.offer.value = "stopping: it takes a moment to end the processes"
        elif self.panel.sweep is not None:
            self.status.value = STOPPING
            self.panel.sweep.stop()

    def _on_progress(self) -> None:
        """Show how far a sweep is, and have the rest drawn soon."""
        sweep = self.panel.sweep
        if sweep is not None:
            self.bar.max, self.bar.value = sweep.runs, len(sweep.tables)
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
            with self._shown():
                self._draw()
            sleep(_REST_SECONDS)

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Show an error of a thread, which would be shown nowhere else."""
        try:
            yield
        except Exception as error:
            self.message.value = _error_html(f"{type(error).__name__}: {error}")

    def _draw(self) -> None:
        """Show the chart and the table of what is measured; at rest also the findings, the first as the answer."""
        panel, running = self.panel, self.panel.running  # asked before the rows are: what comes after is drawn again
        self.line.value, self.code.value = panel.papermill(), panel.python()
        if not panel.shows_sweep:
            points, repeats = panel.points(), panel._options()["repeats"]
            self.status.value = outlook(points, panel.folder, repeats)
            self.bar.max, self.bar.value = len(points) * repeats, len(panel.tables())
        measured = panel.measured()
        self._measured = list(measured["measured_at"].astype(str))
        self._show_below()
        rows = undisturbed(measured)  # which the chart, the table, the sentences and the advice are of
        chart = drawn_by_jupyter(SWEEP_CHARTS[self.choice.value](rows).to_dict())
        self.chart.outputs = ({"output_type": "display_data", "data": chart, "metadata": {}},)
        self.table.value = Rows(rows)._repr_html_() if len(rows) else ""
        found = [] if running or rows.empty else findings(rows)
        answers = [sentence for by in ("strategy", *AXES) for sentence in axis_sentences(rows, by)] if found else []
        bold = "<br>".join(map(escape, dict.fromkeys(answers or found[:1])))
        self.answer.value = f"<b>{bold}</b>" if found else ""
        self.findings.value = Sentences(found)._repr_html_()
        advised = tuple(rows["measured_at"].astype(str)) if found else ()
        if advised != self._advised:  # or a race's results would be gone
            self._advice = self._raced.get(advised) or (advise(rows) if found else None)
            self._advised = advised
            self._least_seconds = max([_RACE_SECONDS, *(_RACE_STEPS * rows["mean_seconds"].dropna())]) if found else 0.0
            self._show_advice()


def _error_html(problem: str) -> str:
    return f'<div style="color:{_ERROR};line-height:1.4">{escape(problem)}</div>' if problem else ""


def _button(text: str, icon: str, style: str, tip: str) -> Any:
    layout = widgets.Layout(width="auto", min_width="100px")
    made = widgets.Button(description=text, icon=icon, button_style=style, tooltip=tip, layout=layout)
    made.add_class(f"tclab-{text.lower().replace(' ', '-')}")
    return made
