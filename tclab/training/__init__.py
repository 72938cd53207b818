"""One training step and what surrounds it: loading, loops, data-parallel training, the check, estimates."""

__all__: list[str] = []
__dir__ = __all__.copy
