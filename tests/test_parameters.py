"""A parameter that papermill was given and the notebook does not have is refused by name."""

from types import SimpleNamespace

import pytest

import tclab
from tclab import InputError

lab = pytest.importorskip("tclab.lab")
OWN = 'graph: str = "synthetic"\nbatch_sizes = "auto"  # 1,2,4\nsteps = 8'


@pytest.fixture
def ran(monkeypatch):
    """Let a kernel have run the cells of a notebook, and what papermill put behind its parameters."""

    def run(injected="", **values):
        cells = ["", OWN, *([f"# Parameters\n{injected}"] if injected else []), "import altair as alt"]
        shell = SimpleNamespace(user_ns={"In": cells, **values})
        monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)

    return run


def test_those_that_there_are_pass_and_without_papermill_there_is_nothing_to_refuse(ran, monkeypatch):
    for injected in ("", 'batch_sizes = "1,2"\ngraph = "synthetic"\n'):
        ran(injected)
        lab.check_parameters()
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: None)
    lab.check_parameters()


def test_those_that_no_cell_names_go_to_the_function_that_takes_them(ran):
    ran('steps = 4\nmode = "data"\nretry = True\nslurm = "time:5"\n', mode="data", retry=True, slurm="time:5")
    points, sweep = lab.check_parameters(tclab.grid, lab.LiveSweep, more={"store": "lmdb"})
    assert points == {"mode": "data", "store": "lmdb"}
    assert sweep == {"retry": True, "slurm": "time:5"}


@pytest.mark.parametrize(
    ("injected", "functions", "more", "words"),
    [
        ('steps = 4\nbatchsizes = "1,2"\n', (), {}, "unknown parameter 'batchsizes'; did you mean 'batch_sizes'"),
        ("", (tclab.grid,), {"mod": "data"}, "unknown parameter 'mod'; did you mean 'mode'"),
        ("retri = True\n", (tclab.grid, lab.LiveSweep), {}, "unknown parameter 'retri'; did you mean 'retry'"),
    ],
)
def test_one_that_there_is_not_is_refused_with_the_nearest(ran, injected, functions, more, words):
    ran(injected)
    with pytest.raises(InputError, match=words):
        lab.check_parameters(*functions, more=more)
