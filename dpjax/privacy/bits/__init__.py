"""Accept bits: Rényi divergences, exact composition, total variation."""
