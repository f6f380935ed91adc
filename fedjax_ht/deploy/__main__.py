"""python -m fedjax_ht.deploy is fedjax-ht deploy."""

from fedjax_ht.runner.command import main

if __name__ == "__main__":
    main("deploy")
