"""Readers of untrusted files: bounded in size and memory, and executing no code."""
