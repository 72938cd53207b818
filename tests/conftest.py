import os
import tempfile

# Two cores are shared by whatever else runs: one thread a process makes tests repeatable and no slower.
os.environ["OMP_NUM_THREADS"] = "1"
# every process that a test starts inherits it; each worker of pytest-xdist has one of its own
os.environ["TCLAB_TEST_RUN"] = str(os.getpid())
# What a calibration finds is kept between runs of a user's, not of tests.
os.environ["TCLAB_CACHE"] = tempfile.mkdtemp(prefix="tclab-tests-")

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from orphans import MARK, left_behind

torch.set_num_threads(1)
settings.register_profile(
    "tclab", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tclab")

ROOT = Path(__file__).resolve().parents[1]


# Files that take minutes, the longest first: with several processes none is left alone with one at the end.
LONGEST = (
    "test_notebooks.py",
    "test_browser.py",
    "test_sweep.py",
    "test_slurm.py",
    "test_race.py",
    "test_launched.py",
    "test_fits.py",
    "test_habits.py",
    "test_epoch.py",
    "test_loading.py",
    "test_trace_nesting.py",
    "test_panel.py",
    "test_ranks.py",
    "test_equality.py",
    "test_shared_graph.py",
)


def pytest_collection_modifyitems(items):
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left():
    """After the last test, and after all other fixtures: whatever was started has ended."""
    yield
    if "tclab.sweeps.running" in sys.modules:  # children that are kept warm for the next point end with the tests
        sys.modules["tclab.sweeps.running"].close_children()
    left = left_behind(os.environ[MARK])
    assert not left, f"processes were left behind: {left}"


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def full():
    """The synthetic cell at its real size, which takes seconds to make."""
    import tclab

    return tclab.CellGraph.synthetic(1.0)


@pytest.fixture
def shared_data() -> Path:
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder ../shared/data with real public files is not here")
    return folder
