"""The strategies, which make views of samples, their registry, and the batch that is sent to the device.

`tclab.view` makes a view by a strategy in one call.
"""

from tclab.masking._batch import Batch
from tclab.masking._delta import Delta
from tclab.masking._edge_masks import EdgeMask, StoredIndex, StoredMask
from tclab.masking._on_device import Dense, GpuFilter, GpuMask, GpuMaskCached, GpuMaskLoop, Indices, NodeMask
from tclab.masking._strategy import Strategy, get, names, register
from tclab.masking._subgraphs import OneHop, SampledEdges, Subgraph, ThreeHops, TwoHops

for _class in (
    *(Subgraph, EdgeMask, StoredIndex, StoredMask),
    *(GpuMaskLoop, GpuMask, GpuMaskCached, GpuFilter),
    *(NodeMask, Dense, Delta),
    *(OneHop, TwoHops, ThreeHops, SampledEdges, Indices),
):
    register(_class)

__all__ = ["Batch", "Strategy", "get", "names", "register"]
__dir__ = __all__.copy  # completion offers these
