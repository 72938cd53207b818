"""The live lab as a person has it: JupyterLab, a real browser, a click.

Figures are printed, and kept in `runs/browser/` with the screenshots. They fail at ten times what the lab
promises: a test machine is noisy, and `benchmarks/browser_latency.py` holds them to the promise itself.
"""

import json
import re
import time
from contextlib import nullcontext

import pandas as pd
import papermill
import pytest
from browser import BAR, CHROMIUM_OPTIONS, ROOT, Page, chromium, dark, jupyter_lab, missing

from tclab.lab.panel._panel_state import PanelState
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._rows import columns_of, table

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

PICTURES = ROOT / "runs" / "browser"
PROMISED = {  # by the README, and by benchmarks/browser_latency.py
    "first_bar_seconds": 5.0,
    "stop_seconds": 1.0,
    "slider_seconds": 0.2,
    "busy_slider_seconds": 0.2,
    "slider_at_500_points_seconds": 0.2,
}
NOISE = 10  # many tests at once, on two cores; benchmarks/browser_latency.py holds what is promised


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def figures():
    found = {}
    yield found
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / "figures.json").write_text(json.dumps(found, indent=1))


@pytest.fixture(scope="module")
def server(folder):
    with jupyter_lab(folder) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        with_options = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_OPTIONS)
        yield with_options
        with_options.close()


@pytest.fixture
def page(browser, server):
    opened = browser.new_page(viewport={"width": 1500, "height": 1400}, permissions=["clipboard-read"])
    made = Page(opened, server, PICTURES)
    yield made
    made.picture("last")  # what was on screen where a test failed
    opened.close()


@pytest.fixture
def said(figures, capsys):
    """Print a figure, and hold it to ten times what is promised."""

    def say(name, value):
        figures[name] = value
        with capsys.disabled():
            print(f"\n{name}: {value:.3g}" + (f" (promised {PROMISED[name]:g})" if name in PROMISED else ""))
        if name in PROMISED:
            assert value < NOISE * PROMISED[name], name

    return say


def notebook(folder, name, **parameters):
    """Put a copy of explore.ipynb with other parameters beside it."""
    made = folder / "notebooks" / name
    text = papermill.execute_notebook(
        str(ROOT / "notebooks" / "explore.ipynb"), None, parameters, prepare_only=True, progress_bar=False
    )
    for cell in text.cells:  # as it is committed: nothing has been run
        cell.metadata.pop("papermill", None)
    text.metadata.pop("papermill", None)
    made.write_text(json.dumps(text, default=dict))
    return f"notebooks/{name}"


HANDLE = "document.querySelector('.tclab-scale .noUi-handle')"
PRESS = f"{HANDLE}.dispatchEvent(new KeyboardEvent('keydown', {{key: '%s'}}))"


def slider_seconds(page):
    """Return how long the kernel takes to answer a slider, there and back: until the bytes that it says change."""
    said = "document.querySelector('.tclab-points').innerText"
    return max(
        page.seconds_until(f"window.said = {said}; {PRESS % key}", f"{said} !== window.said")
        for key in ("ArrowRight", "ArrowLeft")
    )


def test_a_sweep_is_run_stopped_and_gone_on_with_over_a_reload_and_a_restart(page, folder, said):
    sweep = notebook(folder, "live.ipynb", batch_sizes="1,2,4,8,16", results="runs/live/rows")
    page.open(sweep)
    page.run_all()
    page.wait(".tclab-run:enabled")
    page.wait_for_text(".tclab-points", "15 points")
    time.sleep(5)  # the child is warm when somebody has read the form
    page.picture("1-shown")
    said("slider_seconds", min(slider_seconds(page) for _ in range(3)))

    seen = f"document.querySelector(`{BAR}`)"
    said("first_bar_seconds", page.seconds_until("document.querySelector('.tclab-run').click()", seen))
    said("busy_slider_seconds", min(slider_seconds(page) for _ in range(3)))
    page.wait_for_text(".tclab-status", "left")
    page.picture("2-running")

    ended = "document.querySelector('.tclab-status').innerText.startsWith('Stopped')"
    said("stop_seconds", page.seconds_until("document.querySelector('.tclab-stop').click()", ended))
    page.picture("3-stopped")
    stopped = page.text(".tclab-status")
    through = len(Results(folder / "runs" / "live" / "rows").kept())
    assert f"{through} of 15 points" in stopped
    assert 0 < through < 15

    page.page.click(".tclab-resume")
    page.wait(".tclab-stop:enabled")
    page.save()
    page.open(sweep)  # the browser was closed while the sweep runs; the kernel was not
    page.wait(".tclab-stop:enabled")
    page.wait_for_text(".tclab-status", "left")
    page.wait(BAR)
    assert "_mask" in page.text(".tclab-table")
    page.picture("4-reloaded")

    page.restart_kernel()  # in the middle of it
    page.run_all()  # another kernel, the same folder
    page.wait_for_text(".tclab-status", "of 15 points. Resume goes on with it.")
    here = page.text(".tclab-status").removeprefix("The last sweep here: ")
    assert through <= int(here.split()[0]) < 15  # nothing that was measured is lost
    page.page.click(".tclab-resume")
    page.wait_for_text(".tclab-status", "Through: 15 of 15 points")
    page.wait(".tclab-run:enabled")
    assert not page.page.is_enabled(".tclab-stop")
    assert not page.page.is_enabled(".tclab-resume")
    page.wait_for_text(".tclab-findings", "What was found")
    assert page.bars() == 3
    assert "node_mask" in page.text(".tclab-table")
    page.picture("5-through")
    page.save()
    said("notebook_bytes", (folder / sweep).stat().st_size)
    assert page.errors == []


def filled(folder, state):
    """Fill a results folder with rows for every point of a state, as a sweep of long ago would have left them."""
    results = Results(folder)
    (template,) = table([recorded_step()]).to_pylist()
    points = state.points()
    for place, point in enumerate(points):
        seconds = 0.01 * point.batch_size * (1 + place % 7)
        own = {"mean_seconds": seconds, "low_seconds": 0.9 * seconds, "high_seconds": 1.1 * seconds, "cycle_steps": 1,
               "median_seconds": seconds, "q1_seconds": 0.9 * seconds, "q3_seconds": 1.1 * seconds,
               "samples_per_second": point.batch_size / seconds}  # fmt: skip
        results.write(point, table([{**template, **columns_of(point), **own}]))
    return len(points)


def recorded_step():
    return {
        "stage": "step", "where": "host", "status": "ok", "n": 5, "batch_bytes": 1000, "exact": True,
        "equivalence": "passed", "equivalence_fp64_error": 1e-13, "cpu": "Recorded", "cores": 2,
        "measured_at": "2026-01-01T00:00:00",
    }  # fmt: skip


MANY = {
    "strategies": "subgraph,edge_mask,stored_index,stored_mask,gpu_mask_loop,gpu_mask,gpu_mask_cached,gpu_filter,"
    "node_mask,gene_mask_cache",
    "batch_sizes": "1,2,3,4,5,6,7,8,9,10",
    "networks": "1,3,5,7,9",
}


@pytest.fixture(scope="module")
def many(server, folder):
    """A notebook whose panel finds the rows of 500 points."""
    results = folder / "runs" / "many" / "rows"
    assert filled(results, PanelState.of(**MANY, results=str(results))) == 500
    return notebook(folder, "many.ipynb", **MANY, results="runs/many/rows")


def test_500_points_keep_the_page_usable_and_the_notebook_small(page, folder, many, said):
    page.open(many)
    page.run_all()
    page.wait_for_text(".tclab-status", "500 of 500 points")
    through = "document.querySelector('.tclab-status').innerText.startsWith('Through: 500 of 500')"
    said("all_500_points_seconds", page.seconds_until("document.querySelector('.tclab-run').click()", through))
    assert page.bars() == 10
    said("slider_at_500_points_seconds", min(slider_seconds(page) for _ in range(3)))
    page.picture("6-500-points")
    page.save()
    size = (folder / many).stat().st_size
    said("notebook_of_500_points_bytes", size)
    assert size < 2_000_000
    assert page.errors == []


CHARTS = """from IPython.display import display
from tclab import lab
lab.show_charts()
rows = {rows!r}
display(lab.charts.throughput(rows))
lab.steps(rows)"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_chart_shows_its_figures_under_the_mouse_and_a_table_sorts_in_the_theme_of_the_page(page, folder, theme):
    path = folder / "notebooks" / f"chart_{theme}.ipynb"
    cell = {"id": "chart", "cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cell["source"] = CHARTS.format(rows=str(ROOT / "tests" / "recorded_rows.parquet"))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": [cell]}))
    with dark(folder) if theme == "dark" else nullcontext():
        page.open(f"notebooks/{path.name}")
        page.run_all()
        page.wait(".jp-RenderedVegaCommon5 canvas, .jp-RenderedVegaCommon5 svg")
        time.sleep(1)  # JupyterLab draws it and then its picture
        chart = page.page.query_selector(".jp-RenderedVegaCommon5 canvas, .jp-RenderedVegaCommon5 svg").bounding_box()
        for step in range(3):  # into the first bar: below the title, right of the names
            page.page.mouse.move(chart["x"] + 200 + step, chart["y"] + 64)
        page.wait_for_text("#vg-tooltip-element", "samples a second")
        assert re.search(r"samples a second:\s+\d", page.text("#vg-tooltip-element"))
        page.picture(f"8-chart-{theme}")
        for place, head, unit in ((3, "mean step [95 %]", " ms"), (1, "strategy", "")):
            for down in (False, True):
                page.page.click(f"text={head}")
                shown = page.page.locator(f".jp-OutputArea tbody td:nth-child({place})").all_inner_texts()
                cells = [float(text.split(unit)[0]) for text in shown] if unit else shown
                assert cells == sorted(cells, reverse=down)
                assert len(set(cells)) > 2
        with page.page.expect_download() as saved:
            page.page.click("input[value=Download]")
        table = pd.read_csv(saved.value.path())
        assert list(table["strategy"]) == cells
        page.page.click("input[value=Copy]")
        assert page.page.locator("input[value=Copied]").count() == 1
        assert page.page.evaluate("() => navigator.clipboard.readText()").split()[0] == "strategy"
        corner = page.page.evaluate("""() => {
            const canvas = document.querySelector('.jp-RenderedVegaCommon5 canvas');
            return [...canvas.getContext('2d').getImageData(2, 2, 1, 1).data];
        }""")
        assert (max(corner[:3]) < 100 and corner[3] == 255) == (theme == "dark")
        page.save()
    drawn, _ = json.loads(path.read_text())["cells"][0]["outputs"]
    assert "image/png" in drawn["data"]  # for whoever reads the notebook without a JupyterLab
    assert page.errors == []


def test_the_panel_can_be_read_on_a_dark_page(page, folder, many):
    with dark(folder):
        page.open(many)
        page.run_all()
        page.wait_for_text(".tclab-status", "500 of 500 points")
        page.wait(BAR)
        page.picture("7-dark")
        colours = page.page.evaluate(
            """() => ['.tclab-status', '.tclab-table td', '.tclab-points'].map(selector => {
                const found = getComputedStyle(document.querySelector(selector)).color.match(/\\d+/g).map(Number);
                return found[0] + found[1] + found[2];
            })"""
        )
        assert min(colours) > 3 * 150  # light words
        card = page.page.evaluate("() => getComputedStyle(document.querySelector('.vega-embed svg')).backgroundColor")
        assert card == "rgb(255, 255, 255)"  # the chart stays a white card, on which its colours were chosen
