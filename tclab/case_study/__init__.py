"""The case study: a team's two models, whose published figures, hypotheses and mistakes tclab began with.

Wrong figures reproduced (`wrong_figures`), the cost of each overhead of the training code (`overhead_costs`), published
ratios next to measured ones (`published_ratios`), the closing table measured (`component_table`), three hypotheses
with a verdict each (`hypotheses`) and two experiments as points (`experiment_083`). The notebooks are in
`notebooks/case_study/`.
"""

from tclab._extras import need

need(__name__, "lab", "pandas", "scipy", "altair", "ipywidgets")

from tclab.case_study._artefacts import wrong_figures
from tclab.case_study._components import component_table
from tclab.case_study._hypotheses import findings, hypotheses
from tclab.case_study._overhead_costs import overhead_costs
from tclab.case_study._published import experiment_083, experiment_084, published_figures, published_ratios

__all__ = [
    "component_table",
    "experiment_083",
    "experiment_084",
    "findings",
    "hypotheses",
    "overhead_costs",
    "published_figures",
    "published_ratios",
    "wrong_figures",
]
__dir__ = __all__.copy  # completion offers these
