"""Running a point on this machine, in a warm worker process or in ranks that torchrun starts."""
