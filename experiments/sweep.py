"""python -m experiments.sweep: the same as `fedjax-ht sweep`, which fedjax_ht/runner/sweep.py
does."""

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    main("sweep")
