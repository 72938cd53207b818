import gc
import os
import tempfile

# Two cores are shared by whatever else runs: one thread a process makes tests repeatable and no slower.
os.environ["OMP_NUM_THREADS"] = "1"
# every process that a test starts inherits it; each worker of pytest-xdist has one of its own
os.environ["TCLAB_TEST_RUN"] = str(os.getpid())
# What can be made again, such as graphs that were read, is kept between runs of a user's, not of tests.
os.environ["TCLAB_CACHE"] = tempfile.mkdtemp(prefix="tclab-tests-")

import multiprocessing
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbval.plugin
import pytest
import torch
from forked import IMPORTED, Forks
from hypothesis import HealthCheck, settings
from nbval.kernel import RunningKernel
from notebook_outputs import FINDS, LIMITS, SAID, shown_well
from orphans import MARK, left_behind
from xdist.scheduler import LoadScopeScheduling

from tclab import _child_process

torch.set_num_threads(1)
# installed modules: a forkserver of Python 3.11 does not find those of tests, and says nothing
multiprocessing.set_forkserver_preload([*IMPORTED])
COMMON = {
    "deadline": None,
    "derandomize": True,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("fast", max_examples=10, **COMMON)
settings.register_profile("wide", max_examples=60, **COMMON)  # make attack
settings.load_profile("fast")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def orders_of_rounds_that_are_the_same_each_time():
    """A race draws the orders of its rounds anew; a test of its verdict must not depend on them."""
    blocks = sys.modules.get("tclab.timing._race_blocks")
    if blocks is not None:
        blocks.DRAWN.seed(0)


# What goes to one process, and in which order. Notebooks begin, the long ones first, then files that take long.
# Of the files in SPLIT each test goes to whichever process is free; with those in LAST no process is alone at the end.
# Another file goes whole to one process, and some together: for rows of the other notebook, a worker that is warm, a
# compiler that is imported, a graph of full size.
FIRST = ("scaling.ipynb", "where_time_goes.ipynb", "hypotheses.ipynb", "masks.ipynb", "trust.ipynb", "explore.ipynb",
         "sweep.ipynb", "your_model.ipynb", ".ipynb", "test_browser.py", "test_slurm.py", "test_launched.py",
         "test_panel.py", "test_sweep.py", "test_gpu_command.py", "test_notebooks.py", "test_project.py")  # fmt: skip
LAST = ("test_equality.py", "test_fits.py", "test_epoch.py", "test_verdict_attacks.py")
SPLIT = ("test_gpu_command.py", "test_notebooks.py", "test_project.py", *LAST)
TOGETHER = {
    "hypotheses.ipynb": "where_time_goes.ipynb",
    "test_sweep.py": "test_panel.py",
    "test_check.py": "test_compiled.py",
}


BY_DEFAULTS = os.environ.get("TCLAB_NOTEBOOKS") == "defaults"  # of make test-all; else by their test_parameters


def pytest_collection_modifyitems(config, items):
    # what is imported is no garbage: each collection of a race or a measurement would look 0.2 s there
    gc.freeze()
    gc.unfreeze = lambda: None  # as a race does at its end
    order = [*dict.fromkeys((*FIRST, *TOGETHER, *TOGETHER.values())), "another", *LAST]
    place = {name: number for number, name in enumerate(order)}
    items.sort(key=lambda item: place.get(item.path.name, place.get(item.path.suffix, place["another"])))
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # what its kernel's client warns of
            if "parameters" in item.cell.metadata.get("tags", []):
                # as papermill's -p does
                smaller = {} if BY_DEFAULTS else item.parent.nb.metadata.get("test_parameters", {})
                item.cell.source += "".join(f"\n{name} = {value!r}" for name, value in smaller.items())
                if BY_DEFAULTS:
                    item.cell.source += LIMITS
            if found := FINDS.get(item.path.name, {}).get(item.cell.get("id")):
                item.cell.source += f"\nassert {found}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """After a cell of a notebook that runs by its defaults: look at what it shows."""
    result = yield
    if BY_DEFAULTS and item.path.suffix == ".ipynb" and item.cell.cell_type == "code":
        pictured = "picture" in item.cell.metadata.get("tags", [])
        shown_well(item.cell["id"], item.test_outputs, SAID.get(item.path.stem, {}), pictured=pictured)
    return result


_kernels = []  # of this process, one at most


def one_kernel(name, cwd, startup_timeout):
    """Return the kernel of all notebooks of this process: it has imported what they import, and knows no other's names.

    A start and its imports take a kernel and its worker eight seconds.
    """
    if _kernels and not _kernels[0].is_alive():
        _kernels.clear()
    if not _kernels:
        _kernels.append(RunningKernel(name, cwd, startup_timeout))
    kernel = _kernels[0]
    kernel.stop = lambda: None  # after each notebook
    forgets = kernel.execute_cell_input(f"%reset -f\n%cd -q {cwd}")
    kernel.await_reply(forgets, startup_timeout)
    kernel.await_idle(forgets, startup_timeout)
    return kernel


nbval.plugin.RunningKernel = one_kernel


def pytest_sessionfinish():
    while _kernels:
        RunningKernel.stop(_kernels.pop())


class Scheduler(LoadScopeScheduling):
    """`--dist loadgroup` would do with marks, but groups nothing with pytest 9.2 (pytest-xdist, issue 1386)."""

    def _split_scope(self, nodeid):
        name = Path(nodeid.partition("::")[0]).name
        return nodeid if name in SPLIT else TOGETHER.get(name, name)


def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # in the order of pytest_collection_modifyitems
    return Scheduler(config, log)


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left():
    """After the last test, and after all other fixtures: whatever was started has ended."""
    forks = Forks()
    _child_process.subprocess = SimpleNamespace(Popen=forks.popen, PIPE=subprocess.PIPE)
    yield
    pytest_sessionfinish()
    if "tclab.sweeps._run" in sys.modules:  # children that are kept warm for the next point
        sys.modules["tclab.sweeps._run"].close_workers()
    forks.close()
    left = left_behind(os.environ[MARK])
    assert not left, f"processes were left behind: {left}"


def forget_what_is_registered():
    from tclab.masking import _strategy
    from tclab.models import _model_registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_strategy, "_STRATEGIES", dict(_strategy._STRATEGIES))
        patch.setattr(_model_registry, "_MODELS", dict(_model_registry._MODELS))
        yield


# What a file's own fixtures register lasts for the file, what a test registers for the test.
what_a_file_registers_is_forgotten = pytest.fixture(forget_what_is_registered, scope="module", autouse=True)
what_a_test_registers_is_forgotten = pytest.fixture(forget_what_is_registered, autouse=True)


@pytest.fixture(autouse=True)
def a_sweep_of_a_test_does_not_look_who_else_is_busy(monkeypatch):
    """It would warn, and advice would begin, by what else the machine does; tests of that say what is to be found."""
    for module in ("_sweep", "_advise"):
        monkeypatch.setattr(f"tclab.sweeps.{module}.others_now", lambda: "")


@pytest.fixture(autouse=True)
def every_test_draws_the_same_weights():
    """A test that fails fails again: what draws without a generator of its own begins at the same place."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def full():
    """The synthetic cell at its real size, which takes seconds to make."""
    import tclab

    return tclab.CellGraph.synthetic(1.0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder ../shared/data with real public files is not here")
    return folder
