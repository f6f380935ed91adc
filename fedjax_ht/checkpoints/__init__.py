"""What a run stores: checkpoints, checksums, and rows of metrics."""
