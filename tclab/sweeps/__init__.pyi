from tclab.sweeps import config as config
from tclab.sweeps import predict as predict
from tclab.sweeps._race_points import inside as inside
from tclab.sweeps._race_points import loop_of as loop_of
from tclab.sweeps._race_points import race_points as race_points
from tclab.sweeps._worker import run_as_rank as run_as_rank
from tclab.sweeps.predict import run_epoch as run_epoch
