"""Readers of files that nobody vouches for: bounded in size and memory, and none executes code."""
