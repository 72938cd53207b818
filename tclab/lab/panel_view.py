"""What a panel looks like: the form, three buttons, a bar, a chart, a table, words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from html import escape
from time import sleep
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import pandas as pd

from tclab.errors import InputError
from tclab.lab.kept import Kept, kept_in
from tclab.lab.live import LiveSweep, project_path, under_way
from tclab.lab.live_chart import VIEWS, LiveChart
from tclab.lab.panel_form import PanelForm
from tclab.lab.panel_state import PanelState
from tclab.lab.panel_words import (
    BAD,
    ahead,
    duration_text,
    failures,
    found,
    listed_html,
    machine_now,
    points_table,
)
from tclab.lab.throttle import Throttle
from tclab.lab.weighing import Weighing
from tclab.sweeps import Point, warm_up
from tclab.sweeps.gpus import listed
from tclab.sweeps.rows import SCHEMA, frame

if TYPE_CHECKING:
    from tclab.lab.panel import Panel

_DRAWING_SECONDS = 0.34  # a chart is embedded anew each time: three times a second is bearable
_CHECKING_SECONDS = 0.1
_WEIGHING_SECONDS = 3.0  # without a change, before what a point holds is worked out: that takes seconds itself
_AGAIN_SECONDS = (2.0, 10.0)  # after the last drawing: by then even a busy browser has embedded what came before


class PanelView:
    """The widgets of a panel, told values from the sweep's threads; no `Output` widget among them.

    **Arguments:**

    - `panel`: what is set, run and stopped with them.
    """

    def __init__(self, panel: Panel) -> None:
        self.panel = panel
        panel.view = self
        self.form = PanelForm(panel.state, len(listed()))
        self.run = _button(
            "Run", "play", "primary", "run what the fields say; points that are there are not run again"
        )
        self.stop = _button("Stop", "stop", "danger", "end the point under way; what has been measured is kept")
        self.resume = _button("Resume", "forward", "", "go on with the last sweep of this results folder")
        self.load = _button("Load", "upload", "", "set the fields to those of this folder's last sweep")
        self.bar = widgets.IntProgress(layout=widgets.Layout(width="200px"))
        self.status = widgets.Label()
        self.ahead = widgets.HTML()
        self.memory = widgets.HTML()
        self.message = widgets.HTML()
        self.machine = widgets.Label(machine_now())
        self.chart = LiveChart()
        self.choice = widgets.ToggleButtons(options=list(VIEWS), style={"button_width": "auto"})
        self.table = widgets.HTML(layout=widgets.Layout(flex="1 1 400px", overflow="auto"))  # beside the chart
        self.found = widgets.HTML()
        self.failed = widgets.HTML()
        self.line, self.code = _text_to_copy(3), _text_to_copy(14)
        for name in ("status", "ahead", "memory", "message", "table", "found", "failed"):
            getattr(self, name).add_class(f"tclab-{name}")
        to_copy = widgets.Accordion(
            [widgets.VBox([self.line, self.code])],
            titles=("The same as one line of papermill, and as Python",),
            selected_index=None,
        )
        self.box = widgets.VBox(
            [
                self.form.box,
                _row(self.run, self.stop, self.resume, self.load, self.bar, self.status),
                self.message,
                _row(self.ahead, self.machine, space="space-between"),
                self.memory,
                self.choice,
                widgets.HBox([self.chart.box, self.table], layout=widgets.Layout(flex_flow="row wrap")),
                self.found,
                self.failed,
                to_copy,
            ]
        )
        self._rows = frame(SCHEMA.empty_table())
        self._last: PanelState | None = None  # what the last sweep of the folder was asked for
        self._unfinished = False  # the folder's last sweep has points left
        self._problems = {"fields": "", "folder": "", "run": ""}
        self._lock = threading.RLock()  # what is shown of how far it is, in one piece
        self._starting = threading.Lock()  # whoever makes a sweep the panel's, or takes it away
        self._folder = ""
        self._asked: list[Point] = []  # what the fields said when they last said something that can be
        self._found_of: object = None
        self._weighing = Weighing(self._say_memory, _WEIGHING_SECONDS)
        self._check_soon = Throttle(self._guarded("fields", self._check), _CHECKING_SECONDS)
        self._open_soon = Throttle(self._guarded("folder", self._open), _CHECKING_SECONDS)
        self._draw_soon = Throttle(self._guarded("run", self._draw), _DRAWING_SECONDS)
        self.form.on_change(self._check_soon)
        self.run.on_click(lambda _: self._start())
        self.stop.on_click(lambda _: self._stop())
        self.resume.on_click(lambda _: self._go_on())
        self.load.on_click(lambda _: self._load())
        self.choice.observe(lambda _: self._draw_soon(), names="value")
        self._buttons()
        threading.Thread(target=warm_up, daemon=True).start()
        self._take_over()
        self._check_soon()

    def wait(self) -> None:
        """Wait until what was asked for is shown."""
        for throttle in (self._check_soon, self._open_soon, self._draw_soon):
            throttle.wait()

    def _guarded(self, place: str, call: Callable[[], str]) -> Callable[[], None]:
        """Return a call whose problem, returned or raised, is said: a thread's error would be seen by nobody."""

        def guarded() -> None:
            try:
                problem = call()
            except InputError as error:
                problem = str(error)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            self._say(place, problem)

        return guarded

    def _say(self, place: str, problem: str) -> None:
        """Say what is wrong with the fields, the folder or the run; nothing, where nothing is."""
        with self._lock:
            self._problems[place] = problem
            lines = [f"<div>{escape(text)}</div>" for text in self._problems.values() if text]
            self.message.value = f'<div style="color:{BAD};line-height:1.4">{"".join(lines)}</div>' if lines else ""
            self._buttons()

    def _say_memory(self, words: str) -> None:
        self.memory.value = escape(words)

    def rows(self) -> pd.DataFrame:
        """Return the rows that are shown; of a folder that is being read, once it has been."""
        self._check_soon.wait()
        self._open_soon.wait()
        return self._rows if self.panel.sweep is None else self.panel.sweep.rows()

    # What the fields say

    def _check(self) -> str:
        """Say what the fields ask for, or what is wrong with it."""
        try:
            state = self.form.read()
            points = state.points()
            _ = state.options()
        except InputError:
            self.ahead.value = self.line.value = self.code.value = ""
            self._asked = []
            self._weighing.cancel()
            raise
        if str(state.folder) != self._folder:
            self._open_soon()
        self.line.value, self.code.value = state.papermill(), state.python()
        self.ahead.value = escape(ahead(points))
        if points != self._asked:
            self._asked = points
            with self._starting:  # while a sweep measures it has the cores to itself; at its end there is time
                self._weighing.cancel() if self._running() else self._weighing.later(points)
        return ""

    def _running(self) -> bool:
        return self.panel.sweep is not None and self.panel.sweep.running

    def _open(self) -> str:
        """Show what the results folder has: the last sweep that was begun there, as far as it came."""
        results = str(self.form.results.value).strip()
        folder = project_path(results)
        self._folder = str(folder)
        before = self.panel.sweep
        if before is not None and before.running:
            return ""
        there, problem = Kept(), None
        try:
            if folder.is_dir():
                there = kept_in(folder, results)
        except Exception as error:  # said once the rows of another folder are gone
            problem = error
        with self._starting:
            if self.panel.sweep is not before:  # one was started meanwhile
                return ""
            self.panel.sweep, self._rows = None, there.rows
            self._unfinished = there.done < there.wanted
            self._last = there.last
            self.bar.max, self.bar.value = there.wanted or 1, there.done
            self.status.value = there.words
        self._say("run", "")
        self._draw_soon()
        if problem is not None:
            raise problem
        return ""

    # Running

    def _take_over(self) -> None:
        """Show the sweep that runs into this folder already, as after a cell was run again; or what is there."""
        sweep = under_way(self.panel.state.folder)
        if sweep is None:
            self._open_soon()
            return
        saved = PanelState.saved(self.panel.state.results)
        if saved is not None:
            self.panel.state = self._last = saved
            self.form.write(saved)
        self._folder = str(self.panel.state.folder)
        self.panel.sweep = sweep.listen(self._on_progress)
        self._watch(sweep)

    def _start(self) -> None:
        with self._starting:
            if self._running():
                return
            self._weighing.end()
            try:
                self.panel.state = self._last = self.form.read()
                sweep = self.panel.start(self._on_progress)
                problem = ""
            except InputError as error:
                problem = str(error)
        if problem:
            self._say("run", problem)
            return
        self._say("run", "")
        self._watch(sweep)

    def _watch(self, sweep: LiveSweep) -> None:
        self.bar.max, self.bar.value = len(sweep.points), sweep.done
        self._buttons()
        self._draw_soon()
        threading.Thread(target=self._tick, args=(sweep,), daemon=True).start()

    def _stop(self) -> None:
        if self.panel.sweep is not None:
            self.panel.sweep.stop()

    def _go_on(self) -> None:
        """Run the last sweep of the folder again: its points that are through are read."""
        if self._running():
            return
        self._load()
        self._start()

    def _load(self) -> None:
        """Set the fields to what the last sweep of the folder was asked for."""
        if self._last is not None:
            self.form.write(self._last)
            self._check_soon()

    def _on_progress(self, sweep: LiveSweep) -> None:
        self._draw_soon()

    def _tick(self, sweep: LiveSweep) -> None:
        """Keep the clock and the machine's figures going while a sweep runs."""
        while sweep.running:
            self._say_how_far(sweep)
            self.machine.value = machine_now()
            sleep(1.0)
        warm_up()  # a stop has killed the child: have the next one ready
        with self._starting:
            if self._asked and not self._running():
                self._weighing.later(self._asked)

    def _say_how_far(self, sweep: LiveSweep) -> None:
        with self._lock:  # found and shown at once: two threads do so, and the last word is the sweep's end
            running = sweep.running  # asked once: buttons and words agree
            if not running:
                self._unfinished = sweep.done < len(sweep.points)
            self._buttons(running)
            self.bar.value, self.status.value = sweep.done, self._how_far(sweep, running)

    def _how_far(self, sweep: LiveSweep, running: bool) -> str:
        through = f"{sweep.done} of {len(sweep.points)} points"
        if running:
            left = sweep.seconds_left()
            return f"{through} · " + ("begun" if left is None else f"about {duration_text(left)} left")
        if sweep.error is not None:
            return f"{through} · it ended with an error"
        if sweep.done == len(sweep.points):  # also where a stop came after the last point
            return f"Through: {through} in {duration_text(sweep.seconds)}"
        return f"{'Stopped' if sweep.stopped else 'The budget is spent'}: {through} · Resume goes on"

    # What is shown

    def _draw(self) -> str:
        sweep = self.panel.sweep
        over = sweep is None or not sweep.running  # asked before the rows are: what comes after is drawn again
        rows = self._rows if sweep is None else sweep.rows()
        if sweep is not None:
            self._say_how_far(sweep)
        self.table.value = points_table(rows)
        lost = failures(rows)
        self.failed.value = f"<b>Without figures</b>{listed_html(lost)}" if lost else ""
        self.chart.show(rows, self.choice.value)
        if not over:
            self.found.value, self._found_of = "", None
        elif self._found_of is not (of := self._rows if sweep is None else sweep):  # not for each view of the same
            self.found.value, self._found_of = found(rows), of
        if over:
            for seconds in _AGAIN_SECONDS:
                timer = threading.Timer(seconds, self.chart.again)
                timer.daemon = True
                timer.start()
        return "" if sweep is None or sweep.error is None else str(sweep.error)

    def _buttons(self, running: bool | None = None) -> None:
        with self._lock:
            running = self._running() if running is None else running
            self.run.disabled = running or bool(self._problems["fields"] or self._problems["folder"])
            self.stop.disabled = not running
            self.resume.disabled = running or not self._unfinished
            self.load.disabled = running or self._last is None


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
