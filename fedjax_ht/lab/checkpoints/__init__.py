"""Stores a run's results: checkpoints, their checksums, and rows of metrics."""
