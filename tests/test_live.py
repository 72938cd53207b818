"""The sweep beside the notebook: its panel, its stop button, its errors."""

import asyncio

import pytest

from tclab import InputError, Point, lab
from tclab.sweeps import close_children


def points(number):
    return [Point(scale=0.02, batch_size=b + 1, networks=2, steps=1, warmup=0, device="cpu") for b in range(number)]


@pytest.fixture(autouse=True)
def no_child_is_left():
    yield
    close_children()


def test_without_a_front_end_there_is_no_widget_and_a_line_a_point(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    sweep = lab.LiveSweep(points(2), results=tmp_path)
    assert sweep.panel() is None

    async def cell():
        return await sweep.start()

    rows = asyncio.run(cell())
    assert (rows["status"] == "ok").all()
    lines = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in lines] == ["[1/2]", "[2/2]"]
    assert len(sweep.rows()) == len(rows)


def test_with_a_front_end_the_bar_moves_and_nothing_is_printed(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("JPY_SESSION_NAME", "some.ipynb")
    sweep = lab.LiveSweep(points(2), results=tmp_path)
    (bar, button), label = (lambda box: (box.children[0].children, box.children[1]))(sweep.panel())
    assert (bar.value, bar.max) == (0, 2)
    sweep.start().join()
    assert bar.value == 2
    assert "s a step" in label.value
    assert capsys.readouterr().out == ""
    assert button.description == "Stop"


def test_the_stop_button_ends_the_sweep(monkeypatch, tmp_path):
    monkeypatch.setenv("JPY_SESSION_NAME", "some.ipynb")
    sweep = lab.LiveSweep(points(3), results=tmp_path)
    sweep.panel().children[0].children[1].click()
    assert sweep.start().join()["status"].tolist() == ["not run: stopped"] * 3


def test_what_the_sweep_raises_is_raised_in_the_cell(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a folder that can be written"):
        lab.LiveSweep(points(1), results=tmp_path / "file" / "rows").start().join()
