"""Forwards python -m experiments.main to `fedjax-ht run`, fedjax_ht/runner/run.py."""

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    main("run")
