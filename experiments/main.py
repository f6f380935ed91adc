"""python -m experiments.main: the same as `fedjax-ht run`, which fedjax_ht/runner/main.py does."""

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    main("run")
