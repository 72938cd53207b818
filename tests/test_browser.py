"""The live lab as a person has it: JupyterLab, a real browser, a click. Screenshots are kept in `runs/browser/`."""

import json
import os
import re
import shutil
import socket
import sys
import urllib.request
from contextlib import suppress

import psutil
import pytest
from slurm_box import wait_for
from test_compare import step
from test_notebooks import FOLDER, ROOT

from tclab import lab
from tclab.sweeps._point_inputs import resolve
from tclab.sweeps._rows import Results, columns_of, table

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")]
# what makes headless Chromium run as root, without a GPU, and ask nobody anything
CHROMIUM_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
SHOWN = ".jp-RenderedVegaCommon5 :is(canvas, svg)"
# what the lab promises is half a second; a machine that runs all tests is slower by far
STOP_SECONDS = 10


# ---- a JupyterLab and a Chromium of the tests' own, and what a person does in them


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def server(folder):
    """Serve a copy of the notebooks from a folder, on a port of its own; all processes end with it."""
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, log = f"http://127.0.0.1:{port}", folder / "server.log"
    own = {name: str(folder / f".{name.lower()}") for name in
           ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}  # fmt: skip
    with log.open("w") as words:
        process = psutil.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
             f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=",
             "--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None",
             "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", f"--ServerApp.root_dir={folder}"],
            env={**os.environ, **own, "PYTHONPATH": str(ROOT), "JUPYTERLAB_SETTINGS_DIR": str(folder / ".settings"),
                 "JUPYTERLAB_WORKSPACES_DIR": str(folder / ".workspaces"), "TCLAB_RUNS": str(folder / "runs")},
            stdout=words, stderr=words,
        )  # fmt: skip

    def answers():
        assert process.poll() is None, log.read_text()[-3000:]
        with suppress(OSError), urllib.request.urlopen(f"{url}/api", timeout=5):
            return True

    try:
        wait_for("JupyterLab", answers, words=log.read_text)
        yield url
    finally:
        with suppress(psutil.NoSuchProcess):
            started = [process, *process.children(recursive=True)]
            process.terminate()
            for left in psutil.wait_procs(started, 15)[1]:
                left.kill()


@pytest.fixture(scope="module")
def browser():
    with (
        playwright.sync_playwright() as started,
        started.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS) as one,
    ):
        yield one


@pytest.fixture
def page(browser, server):
    page, errors = browser.new_page(base_url=server, viewport={"width": 1440, "height": 900}), []
    page.set_default_timeout(120_000)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    picture(page, "last")  # what was on screen where a test failed
    page.close()
    assert errors == []


def picture(page, name):
    page.evaluate("document.querySelector('.tclab-run')?.closest('.jp-OutputArea-output').scrollIntoView()")
    page.screenshot(path=ROOT / "runs" / "browser" / f"{name}.png")


def open_notebook(page, name):
    page.goto(f"/lab/tree/{name}?reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    context = "window.jupyterapp?.shell.currentWidget?.sessionContext"
    page.wait_for_function(f"{context}?.isReady && {context}.session?.kernel?.status === 'idle'")


def choose(page, command, **options):
    """Do what a menu's entry does, and wait until it is done."""
    page.evaluate("([name, of]) => window.jupyterapp.commands.execute(name, of).then(() => null)", [command, options])


def wait_for_text(page, selector, words, seconds=120):
    shown = playwright.expect(page.locator(selector).first)
    shown.to_contain_text(words, use_inner_text=True, timeout=1000 * seconds)


def points_measured(page):
    """Return how many points the status says that there are rows of."""
    return int(re.search(r"(\d+) of", page.inner_text(".tclab-status"))[1])


def tooltip(page):
    """Return the words that the mouse brings up at some place of the chart."""
    chart = page.query_selector(SHOWN).bounding_box()
    for y in range(60, int(chart["height"]), 15):
        for x in range(130, 730, 50):
            page.mouse.move(chart["x"] + x, chart["y"] + y)
            page.wait_for_timeout(50)
            if page.is_visible("#vg-tooltip-element.visible"):
                return page.inner_text("#vg-tooltip-element")
    return ""


# ---- the notebook of the panel


def notebook(folder, name, **parameters):
    """Put a copy of explore.ipynb with other parameters beside it."""
    made = json.loads((FOLDER / "explore.ipynb").read_text())
    (cell,) = [cell for cell in made["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    cell["source"] += [f"\n{key} = {value!r}" for key, value in parameters.items()]
    (folder / "notebooks" / name).write_text(json.dumps(made))
    return f"notebooks/{name}"


@pytest.mark.clock
def test_a_sweep_is_run_stopped_and_run_again_over_a_reload_and_a_restart(page, folder):
    few = {"scale": 0.05, "networks": 3, "steps": 8, "strategies": "edge_mask,gpu_mask,node_mask"}
    name = notebook(folder, "live.ipynb", batch_sizes="1,2,4,8,16", results="runs/live/rows", **few)
    results = Results(folder / "runs" / "live" / "rows")
    open_notebook(page, name)
    choose(page, "runmenu:run-all")
    wait_for_text(page, ".tclab-status", "0 of 15 settings measured")
    page.fill(".tclab-batch-sizes input", "1,2,x")
    wait_for_text(page, ".tclab-batch-sizes + *", "batch_sizes is 'x', expected a whole number")
    page.wait_for_selector(".tclab-run:disabled")
    picture(page, "error")
    page.fill(".tclab-batch-sizes input", "1,2,4,8")
    wait_for_text(page, ".tclab-status", "0 of 12 settings measured")

    page.click(".tclab-run:enabled")
    wait_for_text(page, ".tclab-status", "left")
    page.wait_for_selector(SHOWN)
    picture(page, "running")
    page.evaluate("document.querySelector('.tclab-stop').click()")
    wait_for_text(page, ".tclab-status", re.compile("^Stopped"), seconds=STOP_SECONDS)
    kept = points_measured(page)
    assert 0 < kept == len([*results.folder.glob("[!.]*.parquet")]) < 12

    page.click(".tclab-run:enabled")
    page.wait_for_selector(".tclab-stop:enabled")
    choose(page, "docmanager:save")
    open_notebook(page, name)  # the browser was closed while the sweep runs; the kernel was not
    page.wait_for_selector(".tclab-stop:enabled")
    wait_for_text(page, ".tclab-status", "left")
    page.wait_for_selector(SHOWN)
    # in the middle of it
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.restartKernel().then(() => null)")
    choose(page, "runmenu:run-all")  # another kernel: fields and rows of the last sweep
    wait_for_text(page, ".tclab-status", " of 12 settings measured")
    assert kept <= points_measured(page) < 12
    page.wait_for_selector(SHOWN)
    page.click(".tclab-run:enabled")
    wait_for_text(page, ".tclab-status", "12 of 12 settings in ", seconds=600)
    page.wait_for_selector(".tclab-answer b")
    page.wait_for_selector(".tclab-measure-again:enabled")
    picture(page, "through")
    for tab, shown in (("Table", ".tclab-table"), ("Findings", ".tclab-findings")):
        page.click(f".lm-TabBar-tab:has-text('{tab}')")
        wait_for_text(page, shown, "node_mask")
    assert len([*results.folder.glob("[!.]*.parquet")]) == 12


# a chart's title, a line below it, the label of an axis
WORDS = [f".tclab-chart .role-{name} text" for name in ("title-text", "title-subtitle", "axis-label")]


def brightness(page, *selectors):
    """Return how bright the words of some elements are on the page, 0 to 255."""
    return page.evaluate(
        """selectors => selectors.map(selector => {
            const style = getComputedStyle(document.querySelector(selector)), svg = selector.endsWith(' text');
            const found = (svg ? style.fill : style.color).match(/\\d+/g).map(Number);
            return (found[0] + found[1] + found[2]) / 3;
        })""",
        selectors,
    )


def notebook_of_160_points(folder):
    """Put a notebook there whose panel finds their rows, as a sweep of long ago would have left them."""
    of = {"batch_sizes": ",".join(map(str, range(1, 33))), "networks": 1, "scale": 0.02, "gpus": 0, "steps": 8,
          "strategies": "subgraph,edge_mask,gpu_mask,node_mask,delta"}  # fmt: skip
    results = Results(folder / "runs" / "many" / "rows")
    for i, point in enumerate(lab.Panel(**of).points()):
        made = step(seconds=0.01 + 0.001 * (i % 5), n=8, batch_size=point.batch_size)
        made |= {**columns_of(resolve(point)), "networks": 1, "measured_at": "2026-11-22T10:00:00+00:00"}
        rows = table({**made, "stage": stage} for stage in ("step", "forward", "backward"))
        results.write(rows, Results.name(resolve(point)))
    return notebook(folder, "many.ipynb", **of, results="runs/many/rows")


def test_160_points_in_a_theme_that_changes_have_figures_under_the_mouse_and_a_small_notebook(page, folder):
    name = notebook_of_160_points(folder)
    open_notebook(page, name)
    choose(page, "apputils:change-theme", theme="JupyterLab Light")
    choose(page, "runmenu:run-all")
    wait_for_text(page, ".tclab-status", "160 of 160 settings measured")
    page.wait_for_selector(SHOWN)
    page.wait_for_selector(".tclab-answer b")
    assert max(brightness(page, ".tclab-status", ".tclab-answer b", *WORDS)) < 150
    page.evaluate(f"document.querySelector('{SHOWN}').drawn_once = true")
    choose(page, "apputils:change-theme", theme="JupyterLab Dark")
    picture(page, "dark")
    assert min(brightness(page, ".tclab-status", ".tclab-answer b", *WORDS)) > 150
    assert page.evaluate(f"document.querySelector('{SHOWN}').drawn_once")  # the same chart, in the other theme
    page.set_viewport_size({"width": 1100, "height": 900})
    assert (
        page.evaluate(f"""() => document.querySelector('.tclab-chart').getBoundingClientRect().right
        - document.querySelector('{SHOWN}').getBoundingClientRect().right""")
        >= 0
    )  # nothing of a chart is cut
    page.set_viewport_size({"width": 1440, "height": 900})
    assert re.search(r":\s+\d", tooltip(page))
    choose(page, "docmanager:save")
    assert (folder / name).stat().st_size < 2_000_000
