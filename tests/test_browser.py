"""The live lab as a person has it: JupyterLab, a real browser, a click. Screenshots are kept in `runs/browser/`."""

import json
import re

import papermill
import pytest
from browser import CHROMIUM_OPTIONS, ROOT, Page, chromium, dark, jupyter_lab, missing

from tclab import lab
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.store._row_files import Results
from tclab.sweeps.store._rows import columns_of, table

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
SHOWN = ".jp-RenderedVegaCommon5 :is(canvas, svg)"
# what the lab promises is half a second; a machine that runs all tests is slower by far
STOP_SECONDS = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def server(folder):
    with jupyter_lab(folder) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_OPTIONS)
        yield started
        started.close()


@pytest.fixture
def page(browser, server):
    made = Page(browser.new_page(viewport={"width": 1440, "height": 900}), server, ROOT / "runs" / "browser")
    yield made
    made.picture("last")  # what was on screen where a test failed
    made.page.close()
    assert made.errors == []


def notebook(folder, name, **parameters):
    """Put a copy of explore.ipynb with other parameters beside it."""
    text = papermill.execute_notebook(
        str(ROOT / "notebooks" / "explore.ipynb"), None, parameters, prepare_only=True, progress_bar=False
    )
    for cell in text.cells:  # as it is committed: nothing has been run
        cell.metadata.pop("papermill", None)
    text.metadata.pop("papermill", None)
    (folder / "notebooks" / name).write_text(json.dumps(text, default=dict))
    return f"notebooks/{name}"


def points_measured(page):
    """Return how many points the status says that there are rows of."""
    return int(re.search(r"(\d+) of", page.text(".tclab-status"))[1])


@pytest.mark.clock
def test_a_sweep_is_run_stopped_and_run_again_over_a_reload_and_a_restart(page, folder):
    name = notebook(folder, "live.ipynb", batch_sizes="1,2,4,8,16", results="runs/live/rows")
    results = Results(folder / "runs" / "live" / "rows")
    page.open(name)
    page.run_all()
    page.wait_for_text(".tclab-status", "0 of 15 points measured")
    page.page.fill(".tclab-batch-sizes input", "1,2,x")
    page.wait_for_text(".tclab-batch-sizes + *", "batch_sizes is 'x', expected a whole number")
    page.wait(".tclab-run:disabled")
    page.picture("error")
    page.page.fill(".tclab-batch-sizes input", "1,2,4,8")
    page.wait_for_text(".tclab-status", "0 of 12 points measured")

    page.page.click(".tclab-run:enabled")
    page.wait_for_text(".tclab-status", "left")
    page.wait(SHOWN)
    page.picture("running")
    ended = "document.querySelector('.tclab-status').innerText.startsWith('Stopped')"
    assert page.seconds_until("document.querySelector('.tclab-stop').click()", ended) < STOP_SECONDS
    kept = points_measured(page)
    assert 0 < kept == len([*results.folder.glob("[!.]*.parquet")]) < 12

    page.page.click(".tclab-run:enabled")
    page.wait(".tclab-stop:enabled")
    page.save()
    page.open(name)  # the browser was closed while the sweep runs; the kernel was not
    page.wait(".tclab-stop:enabled")
    page.wait_for_text(".tclab-status", "left")
    page.wait(SHOWN)
    page.restart_kernel()  # in the middle of it
    page.run_all()  # another kernel: fields and rows of the last sweep
    page.wait_for_text(".tclab-status", " of 12 points measured")
    assert kept <= points_measured(page) < 12
    page.wait(SHOWN)
    page.page.click(".tclab-run:enabled")
    page.wait_for_text(".tclab-status", "12 of 12 points in ", seconds=600)
    page.wait(".tclab-answer b")
    page.picture("through")
    for tab, shown in (("Table", ".tclab-table"), ("Findings", ".tclab-findings")):
        page.page.click(f".lm-TabBar-tab:has-text('{tab}')")
        page.wait_for_text(shown, "node_mask")
    assert len([*results.folder.glob("[!.]*.parquet")]) == 12


@pytest.fixture(scope="module")
def many(server, folder):
    """A notebook whose panel finds the rows of 160 points, as a sweep of long ago would have left them."""
    of = {"batch_sizes": ",".join(map(str, range(1, 33))), "networks": 1, "scale": 0.02, "gpus": 0, "steps": 8,
          "strategies": "subgraph,edge_mask,gpu_mask,node_mask,delta"}  # fmt: skip
    results = Results(folder / "runs" / "many" / "rows")
    for i, point in enumerate(lab.Panel(**of).points()):
        seconds = 0.01 + 0.001 * (i % 5)
        common = {**columns_of(resolve(point)), "status": "ok", "n": 8, "networks": 1, "batch_bytes": 1000 + i}
        common |= {"measured_at": "2026-11-22T10:00:00+00:00", "mean_seconds": seconds, "median_seconds": seconds}
        common |= {"low_seconds": 0.9 * seconds, "high_seconds": 1.1 * seconds, "samples_seconds": [seconds] * 8}
        common |= {"samples_per_second": point.batch_size / seconds}
        rows = table({**common, "stage": stage} for stage in ("step", "forward", "backward"))
        results.write(rows, results.path(point).name)
    return notebook(folder, "many.ipynb", **of, results="runs/many/rows")


def test_160_points_in_the_dark_theme_have_figures_under_the_mouse_and_a_small_notebook(page, folder, many):
    with dark(folder):
        page.open(many)
    page.run_all()
    page.wait_for_text(".tclab-status", "160 of 160 points measured")
    page.wait(SHOWN)
    page.wait(".tclab-answer b")
    page.picture("dark")
    page.page.wait_for_timeout(1000)
    colours = page.page.evaluate(
        """() => ['.tclab-status', '.tclab-answer b'].map(selector => {
            const found = getComputedStyle(document.querySelector(selector)).color.match(/\\d+/g).map(Number);
            return found[0] + found[1] + found[2];
        })"""
    )
    assert min(colours) > 3 * 150
    corner = page.page.evaluate(f"""() => {{
        const canvas = document.querySelector('{SHOWN}');
        return [...canvas.getContext('2d').getImageData(2, 2, 1, 1).data];
    }}""")
    assert max(corner[:3]) < 100
    assert corner[3] == 255
    assert re.search(r":\s+\d", tooltip(page))
    page.save()
    assert (folder / many).stat().st_size < 2_000_000


def tooltip(page):
    """Return the words that the mouse brings up at some place of the chart."""
    chart = page.page.query_selector(SHOWN).bounding_box()
    for y in range(60, int(chart["height"]), 15):
        for x in range(130, 330, 50):
            page.page.mouse.move(chart["x"] + x, chart["y"] + y)
            page.page.wait_for_timeout(50)
            if page.page.is_visible("#vg-tooltip-element.visible"):
                return page.text("#vg-tooltip-element")
    return ""
