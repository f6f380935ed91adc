"""Data sets, partitions, and one copy of the samples for all clients."""
