"""The models Dango and HeteroCell, their losses, and the registry of models by name."""

from tclab.models._dango import Dango
from tclab.models._hetero_cell import HeteroCell
from tclab.models._losses import DangoLoss, MleWassSupCR
from tclab.models._model_registry import ModelKind, get, names, register
from tclab.models._pyg_model import PygModel

__all__ = ["Dango", "DangoLoss", "HeteroCell", "MleWassSupCR", "ModelKind", "PygModel", "get", "names", "register"]
__dir__ = __all__.copy  # completion offers these
