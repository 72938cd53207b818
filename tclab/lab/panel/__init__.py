"""The live panel: a form, a Run button, and a sweep that runs in a thread of the notebook's kernel.

`tclab.lab.Panel` is the panel, `tclab.lab.LiveSweep` a sweep without a form.
"""

from tclab.lab.panel._panel_state import PanelState

__all__ = ["PanelState"]
__dir__ = __all__.copy  # completion offers these
