"""tclab: a performance lab for graph neural networks on perturbed copies of one large graph."""

from tclab._lazy import lazy
from tclab._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy(__name__, __file__)  # `import tclab` must stay cheap
