"""python -m experiments.compare: the same as `fedjax-ht compare`, which fedjax_ht/runner/compare.py
does."""

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    main("compare")
