"""The widgets of a panel: the form, the buttons, a bar, a chart, a table, texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import ipywidgets as widgets
import pandas as pd

from tclab._display import duration_text
from tclab.errors import InputError
from tclab.lab._notebook import project_path
from tclab.lab.charts._sweep_charts import SWEEP_CHARTS, sweep_chart
from tclab.lab.panel._background_calls import BackgroundCalls, BackgroundEstimate
from tclab.lab.panel._live_sweep import LiveSweep, sweep_seconds_text
from tclab.lab.panel._panel_form import PanelForm
from tclab.lab.panel._panel_model import PanelModel
from tclab.lab.panel._panel_text import ERROR_COLOUR, Part, list_html, machine_text, points_text
from tclab.lab.reports._findings import findings
from tclab.sweeps.analysis._compare_runs import compare
from tclab.sweeps.config._gpus import listed
from tclab.sweeps.config._point import Point
from tclab.sweeps.store._row_frame import Rows, without_time


def _folders_beside(folder: Path) -> list[Path]:
    """Return the other folders of results beside one, or beside the folder that it lies in (`runs/a/rows`)."""
    near = {path.parent for level in ("*", "*/*") for path in folder.parent.parent.glob(f"{level}/[!.]*.parquet")}
    return sorted(near - {folder})


class _ThemedChart(alt.JupyterChart):
    """A chart whose page, words and lines are those of the front end's theme; its menu saves it on a white page."""

    _css = (
        alt.JupyterChart._css
        + """
    .vega-embed svg.marks { background-color: transparent !important; }
    .vega-embed :is([class*="role-axis"], [class*="role-legend"], [class*="role-title"]) text {
        fill: var(--jp-content-font-color1, var(--vscode-editor-foreground, #000000));
    }
    .vega-embed .role-axis-grid line, .vega-embed .mark-group > g > path.background { stroke-opacity: 0.4; }
    """
    )


class LiveChart:
    """A chart in a front end, drawn again with `show`.

    Each drawing embeds the chart anew, so a few a second are the most that a browser can take.
    """

    def __init__(self) -> None:
        self._drawings = 0
        alt.JupyterChart.enable_offline()  # a lab often has no internet
        save = {"export": True, "source": False, "compiled": False, "editor": False}
        self._chart = _ThemedChart(sweep_chart(pd.DataFrame()), embed_options={"actions": save, "renderer": "svg"})
        # the page must not jump when a legend comes or goes
        layout = widgets.Layout(height="380px", width="610px", overflow="auto")
        self.box = widgets.Box([self._chart], layout=layout)
        self.show(pd.DataFrame(), next(iter(SWEEP_CHARTS)))

    def show(self, rows: pd.DataFrame, view: str) -> None:
        """Draw a view of some rows."""
        self._draw(sweep_chart(rows, view).to_dict())

    def again(self) -> None:
        """Draw the same once more.

        The browser loses a chart that arrives while it still embeds the one before, most easily the first.
        """
        self._draw(self._chart.spec)

    def _draw(self, spec: dict[str, Any]) -> None:
        # not as a chart: the kernel then hears of each click and zoom
        self._drawings += 1
        self._chart.spec = spec | {"usermeta": {"drawing": self._drawings}}


_EVERY_BATCH = "as each chart suits"
_DRAW_REST_SECONDS = 0.34  # a chart is embedded anew each time: three times a second is bearable
_CHECK_REST_SECONDS = 0.1
_CLOCK_SECONDS = 1.0  # between two looks at the clock and the machine while a sweep runs
_MEMORY_SECONDS = 3.0  # without a change, before memory is estimated: that takes seconds itself
_REDRAW_SECONDS = (2.0, 10.0)  # after the last drawing: by then even a busy browser has embedded what came before


class PanelView:
    """The widgets of a panel; an `Output` widget, which can hang papermill, is not among them.

    All calls of the view run in one background thread, one after another, so that the kernel stays responsive and no
    call sees another's half-done work. Only a stop and the memory estimate run elsewhere.
    """

    def __init__(self, model: PanelModel) -> None:
        self.model = model
        self.form = PanelForm(model.state, len(listed()))
        self.run_button = _button(
            "Run", "play", "primary", "run what the fields say; points that are there are not run again"
        )
        self.stop_button = _button("Stop", "stop", "danger", "end the point under way; what has been measured is kept")
        self.resume_button = _button("Resume", "forward", "", "go on with the last sweep of this results folder")
        self.load_button = _button("Load", "upload", "", "set the fields to those of this folder's last sweep")
        self.bar = widgets.IntProgress(layout=widgets.Layout(width="200px"))
        self.status = widgets.Label()
        self.points = widgets.HTML()
        self.memory = widgets.HTML()
        self.message = widgets.HTML()
        self.machine = widgets.Label(machine_text())
        self.chart = LiveChart()
        self.choice = widgets.ToggleButtons(options=list(SWEEP_CHARTS), style={"button_width": "auto"})
        self.batch = widgets.Dropdown(
            options=[_EVERY_BATCH], description="batch size", layout=widgets.Layout(width="260px"),
            tooltip="of the chart; each chart that shows a single one says in its title which it takes",
        )  # fmt: skip
        self.table = widgets.HTML(layout=widgets.Layout(flex="1 1 400px", overflow="auto"))  # to the chart's right
        self.findings = widgets.HTML()
        self.other = widgets.Combobox(
            description="compare with", placeholder="another folder of results",
            tooltip="a verdict on each point that both have, about what is shown here",
            layout=widgets.Layout(width="500px"), style={"description_width": "105px"},
        )  # fmt: skip
        self.compare_button = _button("Compare", "balance-scale", "", "the rows of that folder with those shown here")
        self.comparison = widgets.HTML()
        self.failed = widgets.HTML()
        self.line, self.code = _text_to_copy(3), _text_to_copy(14)
        for name in ("status", "points", "memory", "message", "table", "findings", "failed", "other", "comparison"):
            getattr(self, name).add_class(f"tclab-{name}")
        to_copy = widgets.Accordion(
            [widgets.VBox([self.line, self.code])],
            titles=("The same as one line of papermill, and as Python",),
            selected_index=None,
        )
        self.box = widgets.VBox(
            [
                self.form.box,
                _row(self.run_button, self.stop_button, self.resume_button, self.load_button, self.bar, self.status),
                self.message,
                _row(self.points, self.machine, space="space-between"),
                self.memory,
                _row(self.choice, self.batch),
                widgets.HBox([self.chart.box, self.table], layout=widgets.Layout(flex_flow="row wrap")),
                self.findings,
                self.failed,
                _row(self.other, self.compare_button),
                self.comparison,
                to_copy,
            ]
        )
        self._problems = {"fields": "", "folder": "", "run": ""}
        self._opened = ""  # the results folder that is shown
        self._points: list[Point] = []  # of the fields, when they were last valid
        self._state = model.state  # that has them
        self._findings_of: object = None  # the rows or the sweep that `found` is about
        self._estimate = BackgroundEstimate(self._show_memory, _MEMORY_SECONDS)
        self._calls = BackgroundCalls(self._make)
        self._redraw_calls = [partial(self.chart.again) for _ in _REDRAW_SECONDS]  # each a call of its own
        self.form.on_change(self._check_soon)
        self.run_button.on_click(lambda _: self._calls.request(self._start_sweep))
        self.stop_button.on_click(lambda _: self._stop())
        self.resume_button.on_click(lambda _: self._calls.request(self._resume))
        self.load_button.on_click(lambda _: self._calls.request(self._load))
        self.compare_button.on_click(lambda _: self._calls.request(self._compare))
        for widget in (self.choice, self.batch):
            widget.observe(lambda _: self._draw_soon(), names="value")
        self._take_over()
        self._show_buttons()
        self._check_soon()

    def wait(self) -> None:
        """Wait until all that was requested is done and shown."""
        self._calls.wait()

    def _check_soon(self) -> None:
        self._calls.request(self._check, rest_seconds=_CHECK_REST_SECONDS)

    def _draw_soon(self) -> None:
        self._calls.request(self._draw, rest_seconds=_DRAW_REST_SECONDS)

    def _make(self, call: Callable[[], str | None]) -> None:
        """Make a call and show its problem, returned or raised: the error of a thread is shown nowhere else.

        A call that returns `None` leaves the message of its place as it is.
        """
        try:
            problem = call()
        except InputError as error:
            problem = str(error)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            place = "fields" if call == self._check else "folder" if call == self._open else "run"
            self._show_problem(place, problem)

    def _show_problem(self, place: str, problem: str) -> None:
        """Show the errors of the fields, the folder and the run, if any."""
        self._problems[place] = problem
        self.form.mark(self._problems["fields"] or self._problems["folder"] or self._problems["run"])
        lines = [f"<div>{escape(text)}</div>" for text in self._problems.values() if text]
        style = f"color:{ERROR_COLOUR};line-height:1.4"
        self.message.value = f'<div style="{style}">{"".join(lines)}</div>' if lines else ""
        self._show_buttons()

    def _show_memory(self, parts: Sequence[Part]) -> None:
        self.memory.value = " · ".join(
            f'<span style="color:{ERROR_COLOUR}">{escape(part.text)}</span>' if part.refuses else escape(part.text)
            for part in parts
        )

    # ---- the sweep that the fields describe

    def _check(self) -> str:
        """Show the points that the fields describe, or the error in a field."""
        try:
            state = self.form.read()
            points = state.points()
            _ = state.options()
            folder = str(state.folder)
        except InputError:
            self.points.value = self.line.value = self.code.value = ""
            self._points = []
            self._estimate.cancel()
            raise
        if folder != self._opened:
            self._calls.request(self._open, rest_seconds=_CHECK_REST_SECONDS)
        self.line.value, self.code.value = state.papermill(), state.python()
        self.points.value = escape(points_text(points))
        if (points, state.results) != (self._points, self._state.results):
            self._points, self._state = points, state
            if self.model.running:  # it has the cores to itself; at its end there is time
                self._estimate.cancel()
            else:
                self._request_estimate()
        return ""

    def _request_estimate(self) -> None:
        points, state = self._points, self._state
        self._estimate.request(points, lambda: sweep_seconds_text(points, state.folder, **state.options()))

    def _open(self) -> str:
        """Show the last sweep of the results folder, as far as it came."""
        results = str(self.form.results.value).strip()
        self._opened = str(project_path(results))
        if self.model.running:
            return ""
        try:
            self.model.open(results)
        finally:  # the rows of another folder are gone, whatever is wrong with this one
            saved = self.model.saved
            self.bar.max, self.bar.value = saved.wanted or 1, saved.done
            self.status.value = " ".join(filter(None, (saved.text, self.model.sweeping_elsewhere(Path(self._opened)))))
            self.other.options = [str(path) for path in _folders_beside(Path(self._opened))]
            self.comparison.value = ""
            self._show_problem("run", "")
            self._draw_soon()
        return ""

    # ---- running

    def _take_over(self) -> None:
        """Show the sweep that runs into this folder already, after a cell was run again; else the folder's last one."""
        sweep = self.model.take_over(self._on_progress)
        if sweep is None:
            self._calls.request(self._open, rest_seconds=_CHECK_REST_SECONDS)
            return
        self.form.write(self.model.state)
        self._opened = str(self.model.state.folder)
        self._watch(sweep)

    def _start_sweep(self) -> str | None:
        """Start the sweep that the fields describe; called in the background thread after a click on Run."""
        if self.model.running:
            return None
        self._estimate.finish()
        self.model.state = self.form.read()
        self._watch(self.model.start(self._on_progress))
        return ""

    def _stop(self) -> None:
        if self.model.sweep is not None:
            self.model.sweep.stop()

    def _resume(self) -> str | None:
        """Run the folder's last sweep again; rows of finished points are read."""
        if self.model.running:
            return None
        self._load()
        return self._start_sweep()

    def _load(self) -> None:
        """Set the fields to the settings of the folder's last sweep."""
        if self.model.last is not None:
            self.form.write(self.model.last)
            self._check_soon()

    def _compare(self) -> str:
        """Show the comparison of a folder that was named with the rows that are shown."""
        self.comparison.value = ""
        if not self.other.value.strip():
            raise InputError("there is nothing to compare with: name another folder of results")
        found = compare(project_path(self.other.value.strip()), self.model.rows(), names=("that folder", "this one"))
        self.comparison.value = found._repr_html_()
        return ""

    def _watch(self, sweep: LiveSweep) -> None:
        self.bar.max, self.bar.value = len(sweep.points), sweep.done
        self._show_buttons()
        self._draw_soon()
        self._calls.request(self._look_at_clock, after_seconds=_CLOCK_SECONDS)

    def _on_progress(self, sweep: LiveSweep) -> None:
        self._draw_soon()

    def _look_at_clock(self) -> None:
        """Keep the time that is left and the machine's figures up to date while a sweep runs."""
        sweep = self.model.sweep
        if sweep is not None and sweep.running:
            self._show_progress(sweep)
            self.machine.value = machine_text()
            self._calls.request(self._look_at_clock, after_seconds=_CLOCK_SECONDS)
            return
        if self._points:
            self._request_estimate()

    # ---- drawing

    def _show_progress(self, sweep: LiveSweep) -> None:
        running = sweep.running  # asked once: buttons and text agree
        self._show_buttons(running)
        self.bar.value, self.status.value = sweep.done, _progress_text(sweep, running)

    def _draw(self) -> str:
        """Show the rows so far: the chart, the table, what failed and, at the end, the findings."""
        sweep = self.model.sweep
        over = sweep is None or not sweep.running  # asked before the rows are: what comes after is drawn again
        rows = self.model.rows()
        if sweep is not None:
            self._show_progress(sweep)
        newest_first = Rows(rows[::-1])._repr_html_()
        self.table.value = f'<div style="font-size:11px">{newest_first}</div>' if len(rows) else ""
        self.failed.value = list_html("Without a time", without_time(rows))
        self.chart.show(self._of_batch(rows), self.choice.value)
        shown = self.model.saved if sweep is None else sweep
        if not over:
            self.findings.value, self._findings_of = "", None
        elif self._findings_of is not shown:  # not for each view of the same rows
            found = [] if rows.empty else findings(rows)
            self.findings.value, self._findings_of = list_html("What was found", found, 8), shown
        if over:
            for call, seconds in zip(self._redraw_calls, _REDRAW_SECONDS, strict=True):
                self._calls.request(call, after_seconds=seconds)
        return "" if sweep is None or sweep.error is None else str(sweep.error)

    def _of_batch(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Offer the batch sizes of some rows, and return the rows of the chosen one; all where none is chosen."""
        sizes, chosen = sorted(map(int, rows["batch_size"].unique())), self.batch.value
        offered = (_EVERY_BATCH, *sizes)
        if self.batch.options != offered:
            self.batch.options = offered  # which chooses the first
            self.batch.value = chosen = chosen if chosen in offered else _EVERY_BATCH
        return rows if chosen == _EVERY_BATCH else rows[rows["batch_size"] == chosen]

    def _show_buttons(self, running: bool | None = None) -> None:
        running = self.model.running if running is None else running
        self.run_button.disabled = running or bool(self._problems["fields"] or self._problems["folder"])
        self.stop_button.disabled = not running
        self.resume_button.disabled = running or not self.model.unfinished
        self.load_button.disabled = running or self.model.last is None


def _progress_text(sweep: LiveSweep, running: bool) -> str:
    done = f"{sweep.done} of {len(sweep.points)} points"
    if running:
        left = sweep.seconds_left()
        return f"{done} · " + ("begun" if left is None else f"about {duration_text(left)} left")
    if sweep.error is not None:
        return f"{done} · it ended with an error"
    if sweep.done == len(sweep.points):  # also where a stop came after the last point
        return f"Through: {done} in {duration_text(sweep.seconds)}"
    return f"{'Stopped' if sweep.stopped else 'The budget is spent'}: {done} · Resume goes on"


def _button(text: str, icon: str, style: str, tip: str) -> Any:
    made = widgets.Button(
        description=text, icon=icon, button_style=style, tooltip=tip, layout=widgets.Layout(width="100px")
    )
    made.add_class(f"tclab-{text.lower()}")
    return made


def _row(*children: Any, space: str = "flex-start") -> Any:
    layout = widgets.Layout(align_items="center", justify_content=space, flex_flow="row wrap", margin="4px 0")
    return widgets.HBox(list(children), layout=layout)


def _text_to_copy(rows: int) -> Any:
    return widgets.Textarea(rows=rows, layout=widgets.Layout(width="100%"))
