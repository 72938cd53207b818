"""A parameter that papermill was given and the notebook does not have is refused by name."""

from types import SimpleNamespace

import pytest

import tclab
from tclab import InputError

lab = pytest.importorskip("tclab.lab")
OWN = 'graph: str = "synthetic"\nbatch_sizes = "auto"  # 1,2,4\nsteps = 8'


@pytest.fixture
def cells(monkeypatch):
    """What a kernel has run, as IPython keeps it."""
    run = [""]
    shell = SimpleNamespace(user_ns={"In": run})
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)
    return run


def test_without_a_kernel_or_papermill_there_is_nothing_to_refuse(cells, monkeypatch):
    cells += [OWN, "import altair as alt"]
    lab.check_parameters()
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: None)
    lab.check_parameters()


def test_those_that_there_are_pass(cells):
    cells += [OWN, '# Parameters\nbatch_sizes = "1,2"\ngraph = "synthetic"\n', "import altair as alt"]
    lab.check_parameters()


def test_one_that_there_is_not_is_refused_with_the_nearest(cells):
    cells += [OWN, '# Parameters\nsteps = 4\nbatchsizes = "1,2"\n']
    with pytest.raises(InputError, match="unknown parameter 'batchsizes'; did you mean 'batch_sizes'"):
        lab.check_parameters()


def test_those_that_no_cell_names_go_to_the_function_that_takes_them(cells, monkeypatch):
    cells += [OWN, '# Parameters\nsteps = 4\nmode = "data"\nretry = True\ngpus_per_node = 4\n']
    shell = SimpleNamespace(user_ns={"In": cells, "steps": 4, "mode": "data", "retry": True, "gpus_per_node": 4})
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)
    points, sweep = lab.check_parameters(tclab.grid, lab.LiveSweep, more={"store": "lmdb"})
    assert points == {"mode": "data", "gpus_per_node": 4, "store": "lmdb"}
    assert sweep == {"retry": True, "gpus_per_node": 4}


def test_more_that_no_function_takes_is_refused_with_the_nearest(cells):
    with pytest.raises(InputError, match="unknown parameter 'mod'; did you mean 'mode'"):
        lab.check_parameters(tclab.grid, more={"mod": "data"})
    cells += [OWN, "# Parameters\nretri = True\n"]
    with pytest.raises(InputError, match="unknown parameter 'retri'; did you mean 'retry'"):
        lab.check_parameters(tclab.grid, lab.LiveSweep)
