"""The two models that the lab compares, their parts and their losses."""

from tclab.models.dango import Dango, DangoOutput
from tclab.models.hetero_cell import HeteroCell
from tclab.models.hyper_sagnn import HyperSAGNN
from tclab.models.losses import DangoLoss, log_cosh
from tclab.models.registry import Loss, ModelKind, get, names, register

__all__ = [
    "Dango",
    "DangoLoss",
    "DangoOutput",
    "HeteroCell",
    "HyperSAGNN",
    "Loss",
    "ModelKind",
    "get",
    "log_cosh",
    "names",
    "register",
]
