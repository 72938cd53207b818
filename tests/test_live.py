"""The sweep beside the notebook: its bar, its stop button, its errors."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tclab import InputError, Point, lab
from tclab.lab import _notebook as front_end
from tclab.sweeps import close_workers

POINT = Point(scale=0.02, batch_size=1, networks=2, steps=1, warmup=0, device="cpu")


def points(number):
    return [replace(POINT, batch_size=b + 1) for b in range(number)]


@pytest.fixture(autouse=True, scope="module")
def no_child_is_left():
    yield
    close_workers()


def test_without_a_front_end_there_is_no_widget_and_a_line_a_point(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    sweep = lab.LiveSweep(points(2), results=tmp_path)
    assert sweep.panel() is None

    async def cell():
        return await sweep.start()

    rows = asyncio.run(cell())
    assert (rows["status"] == "ok").all()
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], *(line[:5] for line in lines[1:])] == ["0 of 2 points measured", "[1/2]", "[2/2]"]
    assert len(sweep.rows()) == len(rows)
    dango = Point(model="dango", strategy="node_mask", scale=0.02)
    words = lab.LiveSweep([*points(3), dango], results=tmp_path).status()
    assert words == "2 of 4 points measured · 1 cannot run (dango reads no masked graph)"


def test_vs_code_is_a_front_end_anybody_can_say_so_and_what_a_cell_starts_has_none(monkeypatch, tmp_path):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    sweep = lab.LiveSweep(points(1), results=tmp_path)
    assert sweep.panel(live=True) is not None
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    asyncio.run(lab.Panel(scale=0.02, gpus=0, results=str(tmp_path)).show(live=True))
    assert [type(one).__name__ for one in shown] == ["VBox"]
    monkeypatch.setenv("JPY_SESSION_NAME", "explore.ipynb")  # of JupyterLab's server
    for of_parent, found in (("explore.ipynb", False), (None, True)):  # papermill inherits it from a cell
        monkeypatch.setattr(front_end, "_of_parent", lambda name, value=of_parent: value)
        assert front_end.has_front_end() is found
    monkeypatch.delenv("JPY_SESSION_NAME")
    shell = SimpleNamespace(user_ns={"__vsc_ipynb_file__": "/home/me/a.ipynb"})
    monkeypatch.setattr(front_end, "_shell", lambda: shell)
    assert sweep.panel() is not None
    assert sweep.panel(live=False) is None


def test_with_a_front_end_the_bar_moves_until_a_stop_and_nothing_is_printed(tmp_path, capsys):
    for stop, bars, words in ((False, 2, "2 of 2 points in "), (True, 0, "Stopped: 0 of 3 points in ")):
        sweep = lab.LiveSweep(points(2 + stop), results=tmp_path / str(stop))
        row, label = sweep.panel(live=True).children
        bar, button = row.children
        assert (bar.value, bar.max) == (0, 2 + stop)
        if stop:
            button.click()  # before the first point
        rows = sweep.start().join()
        assert bar.value == bars
        assert label.value.startswith(words)
        assert set(rows["status"]) == {"not run: stopped" if stop else "ok"}
        assert button.disabled  # there is nothing left to stop
    assert capsys.readouterr().out == ""


def test_the_stop_of_one_sweep_leaves_anothers_point_alone(tmp_path):
    first = lab.LiveSweep([replace(POINT, steps=60)], results=tmp_path / "first")
    second = lab.LiveSweep([replace(POINT, seed=1)], results=tmp_path / "second")
    first.start()
    second.start().stop()
    assert set(first.join()["status"]) == {"ok"}
    assert second.join()["status"].tolist() == ["not run: stopped"]
    second.stop()  # over already: there is nothing of it to end


def test_what_the_sweep_raises_is_raised_in_the_cell(tmp_path):
    (tmp_path / "file").write_text("")
    sweep = lab.LiveSweep(points(1), results=tmp_path / "file" / "rows").start()
    with pytest.raises(InputError, match="expected a folder that can be written"):
        sweep.join()
    assert ", then an error" in sweep.status()
