"""One training step and what surrounds it: loading, loops, data-parallel training, the check, estimates."""
