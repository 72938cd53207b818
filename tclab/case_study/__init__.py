"""The case study: a team's two models, whose published figures, hypotheses and overheads tclab began with.

What each overhead of the training code costs (`OVERHEADS`, `overhead_costs`), published ratios and components next to
measured ones (`published_ratios`, `component_table`), and four claims with a verdict each (`hypotheses`). The
notebooks are in `notebooks/case_study/`.
"""

from tclab.errors import need

need(__name__, "lab", "pandas", "scipy", "altair", "ipywidgets")

from tclab.case_study._hypotheses import hypotheses
from tclab.case_study._overhead_costs import overhead_costs, overheads_chart
from tclab.case_study._published import component_table, published_figures, published_ratios, ratios_chart
from tclab.sweeps.config._overhead_names import OVERHEADS

__all__ = [
    "OVERHEADS", "component_table", "hypotheses", "overhead_costs", "overheads_chart", "published_figures",
    "published_ratios", "ratios_chart",
]  # fmt: skip
__dir__ = __all__.copy  # completion offers these
