"""Accuracy, FLOPs, memory, and rules of nearest neighbours."""
