"""The live panel: a form, a Run button, and a sweep that runs in a thread of the notebook's kernel."""

from tclab.lab.panel._live_sweep import LiveSweep
from tclab.lab.panel._panel import Panel
from tclab.lab.panel._panel_state import PanelState

__all__ = ["LiveSweep", "Panel", "PanelState"]
