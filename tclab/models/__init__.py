"""The two models that the lab compares, their parts and their losses."""

from tclab.models.dango import Dango, DangoOutput
from tclab.models.hetero_cell import HeteroCell, HeteroCellOutput
from tclab.models.hyper_sagnn import HyperSAGNN
from tclab.models.losses import DangoLoss, log_cosh
from tclab.models.mle_wass_supcr import CircularBuffer, MleWassSupCR
from tclab.models.peers import Peers
from tclab.models.registry import Loss, ModelKind, get, loss_names, names, register
from tclab.models.sup_cr import sup_cr

__all__ = [
    "CircularBuffer",
    "Dango",
    "DangoLoss",
    "DangoOutput",
    "HeteroCell",
    "HeteroCellOutput",
    "HyperSAGNN",
    "Loss",
    "MleWassSupCR",
    "ModelKind",
    "Peers",
    "get",
    "log_cosh",
    "loss_names",
    "names",
    "register",
    "sup_cr",
]
