"""The case study: a team's two models, whose published figures, hypotheses and mistakes tclab began with.

Wrong figures reproduced (`wrong_figures`), the cost of each overhead of the training code (`OVERHEADS`,
`overhead_costs`), published ratios next to measured ones (`published_ratios`), the closing table measured
(`component_table`), three hypotheses with a verdict each (`hypotheses`) and two experiments as points
(`experiment_083`). The notebooks are in `notebooks/case_study/`.
"""

import pkgutil
from typing import TYPE_CHECKING, Any

from tclab.errors import need

if TYPE_CHECKING:
    from tclab.case_study._artefacts import wrong_figures
    from tclab.case_study._components import component_table
    from tclab.case_study._hypotheses import findings, hypotheses
    from tclab.case_study._overhead_costs import overhead_costs
    from tclab.case_study._published import experiment_083, experiment_084, published_figures, published_ratios
    from tclab.sweeps.config._overhead_names import OVERHEADS

# a sweep imports `_overheads` from here, and neither altair nor the lab: each name is fetched at first use
_NAMES = {
    "OVERHEADS": "tclab.sweeps.config._overhead_names",
    "component_table": "tclab.case_study._components",
    "experiment_083": "tclab.case_study._published",
    "experiment_084": "tclab.case_study._published",
    "findings": "tclab.case_study._hypotheses",
    "hypotheses": "tclab.case_study._hypotheses",
    "overhead_costs": "tclab.case_study._overhead_costs",
    "published_figures": "tclab.case_study._published",
    "published_ratios": "tclab.case_study._published",
    "wrong_figures": "tclab.case_study._artefacts",
}
__all__ = [
    "OVERHEADS",
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


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'tclab.case_study' has no attribute {name!r}")
    need(__name__, "lab", "pandas", "scipy", "altair", "ipywidgets")
    return pkgutil.resolve_name(f"{_NAMES[name]}:{name}")
