from tclab import case_study as case_study
from tclab import graph as graph
from tclab import lab as lab
from tclab import masking as masking
from tclab import message_passing as message_passing
from tclab import models as models
from tclab import perturbation as perturbation
from tclab import readers as readers
from tclab import sweeps as sweeps
from tclab import timing as timing
from tclab import trace as trace
from tclab import training as training
from tclab._version import __version__ as __version__
from tclab.errors import InputError as InputError
from tclab.graph._cell_graph import CellGraph as CellGraph
from tclab.masking._strategy import view as view
from tclab.message_passing._shared_graph import SharedGraph as SharedGraph
from tclab.sweeps._advise import advise as advise
from tclab.sweeps._compare import compare as compare
from tclab.sweeps._grid import grid as grid
from tclab.sweeps._point import Point as Point
from tclab.sweeps._row_files import rows_of
from tclab.sweeps._run import run as run
from tclab.sweeps._sweep import sweep as sweep
from tclab.sweeps.predict import fits as fits
from tclab.training._check import check as check

rows = rows_of
