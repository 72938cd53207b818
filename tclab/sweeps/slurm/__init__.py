"""A sweep as jobs of a Slurm cluster."""
