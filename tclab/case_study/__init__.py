"""The case study: a team's two models, whose published figures, hypotheses and overheads tclab began with.

What each overhead of the training code costs (`overhead_costs`), published ratios and components next to measured ones
(`published_ratios`, `component_table`), four claims with a verdict each (`hypotheses`), and wrong ratios next to right
ones (`artefacts_chart`). The notebooks are in `notebooks/case_study/`.
"""

from tclab._lazy import lazy
from tclab.errors import need

need(__name__, "lab", "pandas", "scipy", "altair", "ipywidgets")

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
