"""Forwards python -m experiments.evaluate to `fedjax-ht evaluate`, fedjax_ht/runner/evaluate.py."""

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    main("evaluate")
