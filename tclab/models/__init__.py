"""The models Dango and HeteroCell, their losses, and the registry of models by name."""

from tclab.models._dango import Dango
from tclab.models._hetero_cell import HeteroCell
from tclab.models._hyper_sagnn import HyperSAGNN
from tclab.models._losses import DangoLoss, log_cosh
from tclab.models._mle_wass_supcr import MleWassSupCR, sup_cr
from tclab.models._model_registry import Loss, ModelKind, get, names, register

__all__ = [
    "Dango",
    "DangoLoss",
    "HeteroCell",
    "HyperSAGNN",
    "Loss",
    "MleWassSupCR",
    "ModelKind",
    "get",
    "log_cosh",
    "names",
    "register",
    "sup_cr",
]
__dir__ = __all__.copy  # completion offers these
