"""What a chart puts into a cell's output: a picture, and in an interactive front end the chart itself."""

import altair as alt
import pandas as pd
import pytest
import vl_convert
from test_compare import rows, step
from test_lab_overheads import rounds_of

from tclab import case_study, lab, timing
from tclab.lab.charts._style import EMPTY, GREY, empty_chart
from tclab.sweeps.store._rows import frame, table


@pytest.mark.parametrize(
    ("live", "kinds"), [(False, {"image/png"}), (True, {"image/png", "application/vnd.vegalite.v5+json"})]
)
def test_a_chart_is_a_picture_and_in_a_front_end_also_itself(live, kinds):
    chart = alt.Chart(pd.DataFrame({"a": [1.0]})).mark_bar().encode(x="a:Q")
    with alt.renderers.enable(alt.renderers.active):
        lab.show_charts(live=live)
        shown = chart._repr_mimebundle_()
    data = shown[0] if isinstance(shown, tuple) else shown
    assert set(data) == kinds
    if live:
        assert data["application/vnd.vegalite.v5+json"]["mark"]["type"] == "bar"


def test_dataframes_of_a_notebook_are_tables_and_rows_show_themselves(monkeypatch):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    frame = pd.DataFrame({"a": [1.5]})
    with alt.renderers.enable(alt.renderers.active):
        lab.show_charts(live=False)
    shown = shell.display_formatter.formatters["text/html"]
    try:
        assert "<table" in shown(frame)
        assert "1 point" in shown(rows(step()))
        plain = shell.display_formatter.formatters["text/plain"]
        bars = alt.Chart(frame, title="of a test").mark_bar()
        for chart in (bars, (bars + bars).properties(title=alt.Title(["of a", "test"]))):
            assert plain(chart) == "chart: of a test"
        assert plain(alt.Chart(frame).mark_bar()) == "chart: Chart"
        assert plain(empty_chart("no rows")).startswith(EMPTY)  # which tools/notebook_pictures.py looks for
    finally:
        shown.pop(pd.DataFrame)
        plain.pop(alt.TopLevelMixin)


def drawn_live(chart):
    """The Vega-Lite that a front end gets of a chart; of a picture nothing is said here."""
    with alt.renderers.enable(alt.renderers.active):
        lab.show_charts(live=True)
        return chart._repr_mimebundle_()["application/vnd.vegalite.v5+json"]


def units(spec):
    """The parts of a chart that have a mark."""
    inner = [part for name in ("layer", "vconcat", "hconcat") for part in spec.get(name, [])]
    return [spec] if "mark" in spec else [unit for part in inner for unit in units(part)]


def selections(unit):
    return {param["name"]: (param["bind"], param["select"]) for param in unit.get("params", [])}


TABLE = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [3.0, 4.0, 9.0], "label": ["x", "y", "y"]})


def test_a_click_on_a_legend_fades_what_it_does_not_name_in_every_layer():
    base = alt.Chart(TABLE).encode(x="a:Q", y="b:Q", color="label:N")
    chart = base.mark_line() + base.mark_point(opacity=0.7) + alt.Chart(TABLE).mark_text().encode(text="label:N")
    assert "params" not in str(chart.to_dict())  # the picture is drawn of this
    assert "text" not in chart.to_dict()["config"]
    assert drawn_live(chart)["config"]["text"] == {"color": GREY}  # black cannot be read in a dark theme
    line, point, text = units(drawn_live(chart))
    assert selections(line)["legend_1"] == ("legend", {"type": "point", "fields": ["label"]})
    assert "legend_1" not in selections(point)  # a second one would be another choice
    for unit, full in ((line, 1), (point, 0.7)):
        faded = unit["encoding"]["opacity"]
        assert faded["condition"] == {"param": "legend_1", "value": full}
        assert faded["value"] < full / 2
    assert "opacity" not in text["encoding"]


def test_a_field_without_a_legend_has_nothing_to_click():
    chart = alt.Chart(TABLE).mark_bar().encode(x="a:Q", y="label:N", color=alt.Color("label:N", legend=None))
    (bar,) = units(drawn_live(chart))
    assert "params" not in bar  # nor does a bar's length zoom, beside names
    assert "opacity" not in bar["encoding"]


def test_two_numbers_zoom_with_ctrl_and_a_sum_does_not():
    chart = alt.Chart(TABLE).mark_point().encode(x="a:Q", y="b:Q")
    bound, select = selections(*units(drawn_live(chart)))["zoom_1"]
    assert bound == "scales"
    assert select["encodings"] == ["x", "y"]
    assert "ctrlKey" in select["zoom"]  # the wheel alone scrolls the page
    summed = alt.Chart(TABLE).mark_point().encode(x="a:Q", y="sum(b):Q")
    assert "params" not in units(drawn_live(summed))[0]


def test_panels_that_share_an_axis_zoom_together_and_others_by_themselves():
    panel = alt.Chart(TABLE).mark_point().encode(x="a:Q", y=alt.Y("b:Q", axis=None))
    together = [selections(unit) for unit in units(drawn_live(alt.vconcat(panel, panel).resolve_scale(x="shared")))]
    assert [[*found] for found in together] == [["zoom_1"], ["zoom_1"]]
    assert all(found["zoom_1"][1]["encodings"] == ["x"] for found in together)
    apart = [selections(unit) for unit in units(drawn_live(alt.hconcat(panel, panel)))]
    assert [[*found] for found in apart] == [["zoom_1"], ["zoom_2"]]
    assert apart[0]["zoom_1"][1]["encodings"] == ["x"]  # an axis that is not shown stays


def drawn_marks(group):
    """The marks that Vega draws, in groups of any depth."""
    for mark in group.get("marks", []):
        yield mark
        yield from drawn_marks(mark)


def test_names_beside_a_panel_are_not_cut_where_it_zooms():
    costs = case_study.overhead_costs(frame(table(rounds_of("isnan_checks", 1.5, 2))))
    vega = vl_convert.vegalite_to_vega(drawn_live(costs.chart()), vl_version="5.20")
    clipped = {mark["type"]: mark.get("clip", False) for mark in drawn_marks(vega) if mark["type"] != "group"}
    assert clipped["text"] is False  # the overheads' names, left of the axis
    assert clipped["rule"] is True  # and what is moved out of the panel is cut


def test_the_share_of_a_wait_is_one_figure_in_chart_table_and_advice():
    """A loop that waits in one step of four: by medians it waits for nothing."""
    with timing.Ledger(cuda=False) as ledger:
        for step in ledger.steps(range(16)):
            with ledger.stage("data_wait"):
                _busy(0.02 if step % 4 == 3 else 0.0002)
            with ledger.stage("forward"):
                _busy(0.005)
    seconds = ledger.seconds()
    share = sum(seconds["data_wait"]) / sum(seconds["step"])
    assert share > 0.15  # and not the 4 % of typical steps
    chart = lab.charts.result_chart(ledger, where="here").to_dict()
    [drawn] = [row for rows in chart["datasets"].values() for row in rows if row["stage"] == "data_wait"]
    assert drawn["share"] == pytest.approx(share, rel=0.02)
    assert f"{share:.1%}" in str(ledger)
    step_times = timing._advice.step_times_of(ledger)
    assert step_times.share("data_wait")[0] == pytest.approx(share, rel=0.02)


def _busy(seconds):
    import time

    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
