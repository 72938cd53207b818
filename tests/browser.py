"""A JupyterLab and a Chromium of the tests' own: started, driven, and ended with all that they started."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
# what makes headless Chromium run as root, without a GPU, and ask nobody anything
CHROMIUM_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


def missing():
    """Return why there is no browser to test with, or `None`."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "Playwright is not installed: pip install 'tclab[dev]'"
    if chromium() is None:
        return "Chromium is not installed: apt-get install chromium"
    return None


def chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser")


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
