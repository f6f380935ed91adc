"""Forwards python -m experiments.main to `fedjax-ht run`, fedjax_ht/lab/runs/run.py."""

from fedjax_ht.lab.command import main

if __name__ == "__main__":
    main("run")
