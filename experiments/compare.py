"""Forwards python -m experiments.compare to `fedjax-ht compare`, fedjax_ht/runner/compare.py."""

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    main("compare")
