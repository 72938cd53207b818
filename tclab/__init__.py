"""tclab: a performance lab for graph neural networks on perturbed copies of one large graph."""

__version__ = "0.1.0"
