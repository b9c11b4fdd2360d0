"""What ``mutarray demo`` runs: the bug report's scenario, and training on sharded weights."""
