"""Forwards python -m experiments.sweep to `fedjax-ht sweep`, fedjax_ht/runner/sweep.py."""

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    main("sweep")
