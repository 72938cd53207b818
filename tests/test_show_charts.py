"""What a chart puts into a cell's output: a picture, and in an interactive front end the chart itself."""

import altair as alt
import pandas as pd
import pytest

from tclab import lab, timing


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
    account = timing._advice_rules.account_of(ledger)
    assert account.share("data_wait")[0] == pytest.approx(share, rel=0.02)


def _busy(seconds):
    import time

    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
