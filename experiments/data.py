"""python -m experiments.data: the same as `fedjax-ht data`, which fedjax_ht/runner/data.py does."""

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    main("data")
