"""The live lab as a person has it: JupyterLab, a real browser, a click. Screenshots are kept in `runs/browser/`."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import psutil
import pytest
from test_notebooks import FOLDER, ROOT

from tclab import lab
from tclab.sweeps.config._point_inputs import resolve
from tclab.sweeps.store._row_files import Results
from tclab.sweeps.store._rows import columns_of, table

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")]
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
    with (
        playwright.sync_playwright() as started,
        started.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS) as one,
    ):
        yield one


@pytest.fixture
def page(browser, server):
    made = Page(browser.new_page(viewport={"width": 1440, "height": 900}), server, ROOT / "runs" / "browser")
    yield made
    made.picture("last")  # what was on screen where a test failed
    made.page.close()
    assert made.errors == []


def notebook(folder, name, **parameters):
    """Put a copy of explore.ipynb with other parameters beside it."""
    made = json.loads((FOLDER / "explore.ipynb").read_text())
    (cell,) = [cell for cell in made["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    cell["source"] += [f"\n{key} = {value!r}" for key, value in parameters.items()]
    (folder / "notebooks" / name).write_text(json.dumps(made))
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


# ---- a JupyterLab and a Chromium of the tests' own: started, driven, and ended with all that they started


# what makes headless Chromium run as root, without a GPU, and ask nobody anything
CHROMIUM_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


def _settings(folder, theme):
    """Keep JupyterLab from asking about news, and choose its theme."""
    own = folder / "@jupyterlab" / "apputils-extension"
    own.mkdir(parents=True, exist_ok=True)
    (own / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    (own / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))


@contextmanager
def jupyter_lab(folder):
    """Serve a copy of the notebooks from a folder, on a port of its own; all processes end with it."""
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    settings = folder / ".settings"
    _settings(settings, "JupyterLab Light")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {name: str(folder / f".{name.lower()}") for name in
           ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}  # fmt: skip
    with (folder / "server.log").open("w") as words:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
             f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=",
             "--LabApp.expose_app_in_browser=True",
             f"--ServerApp.root_dir={folder}"],
            env={**os.environ, **own, "PYTHONPATH": str(ROOT), "JUPYTERLAB_SETTINGS_DIR": str(settings),
                 "JUPYTERLAB_WORKSPACES_DIR": str(folder / ".workspaces"), "TCLAB_RUNS": str(folder / "runs")},
            stdout=words, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        _answering(f"{url}/api", server, folder)
        yield url
    finally:
        started = [*psutil.Process(server.pid).children(recursive=True)] if server.poll() is None else []
        server.terminate()
        _, left = psutil.wait_procs([psutil.Process(server.pid), *started] if server.poll() is None else started, 15)
        for process in left:
            process.kill()
        server.wait()


def _answering(url, server, folder, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
            time.sleep(0.3)
    raise AssertionError(f"JupyterLab did not answer: {(folder / 'server.log').read_text()[-3000:]}")


class Page:
    """One notebook in JupyterLab."""

    def __init__(self, page, url, pictures):
        self.page, self.url, self.pictures = page, url, pictures
        pictures.mkdir(parents=True, exist_ok=True)
        self.errors = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, notebook):
        self.page.goto(f"{self.url}/lab/tree/{notebook}?reset", timeout=120_000)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
        context = "window.jupyterapp?.shell.currentWidget?.sessionContext"
        self.page.wait_for_function(
            f"() => {context}?.isReady && {context}.session?.kernel?.status === 'idle'", timeout=120_000
        )

    def run_all(self):
        self.command("runmenu:run-all")

    def save(self):
        self.command("docmanager:save")

    def command(self, name):
        """Do what a menu's entry does, and wait until it is done."""
        self.page.evaluate("name => window.jupyterapp.commands.execute(name).then(() => null)", name)

    def wait(self, selector, seconds=120, **options):
        return self.page.wait_for_selector(selector, timeout=seconds * 1000, **options)

    def text(self, selector):
        return self.page.inner_text(selector)

    def wait_for_text(self, selector, words, seconds=120):
        self.page.wait_for_function(
            "([selector, words]) => document.querySelector(selector)?.innerText.includes(words)",
            arg=[selector, words], timeout=seconds * 1000,
        )  # fmt: skip

    def picture(self, name):
        self.page.evaluate(
            "() => document.querySelector('.tclab-run')?.closest('.jp-OutputArea-output').scrollIntoView()"
        )
        self.page.screenshot(path=self.pictures / f"{name}.png")

    def seconds_until(self, act, seen, seconds=120):
        """Return how long it takes, by the page's clock, from an act until something is seen (JavaScript)."""
        self.page.evaluate(f"() => {{ window.begun = performance.now(); {act}; }}")
        waited = self.page.wait_for_function(
            f"() => ({seen}) ? performance.now() - window.begun : false", polling="raf", timeout=seconds * 1000
        )
        return waited.json_value() / 1000

    def restart_kernel(self):
        self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel().then(() => null)"
        )


@contextmanager
def dark(folder):
    """Show JupyterLab's dark theme to every page that is opened meanwhile."""
    _settings(folder / ".settings", "JupyterLab Dark")
    try:
        yield
    finally:
        _settings(folder / ".settings", "JupyterLab Light")
