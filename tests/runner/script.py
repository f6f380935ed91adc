"""Runs the console script as a module."""

import sys

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    sys.argv[0] = "fedjax-ht"
    main()
