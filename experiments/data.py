"""Forwards python -m experiments.data to `fedjax-ht data`, fedjax_ht/runner/data.py."""

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    main("data")
