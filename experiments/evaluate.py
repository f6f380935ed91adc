"""python -m experiments.evaluate: the same as `fedjax-ht evaluate`, which
fedjax_ht/runner/evaluate.py does."""

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    main("evaluate")
