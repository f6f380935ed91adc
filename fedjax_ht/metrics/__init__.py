"""Accuracy, FLOPs and memory."""
