"""Many runs: composed, handed to processes or to SLURM, told of."""
