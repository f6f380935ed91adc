"""Experiments from the command line: `fedjax-ht COMMAND`, which command.py reads."""
