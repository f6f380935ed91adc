"""Configs of this repository's results: `--config=cifar10_fedktl` is cifar10_fedktl.py here."""
