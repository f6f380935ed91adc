"""Stores what a run writes: checkpoints, their checksums, and rows of metrics."""
