"""`python -m fedjax_ht COMMAND` is `fedjax-ht COMMAND`, where no scripts are on the path."""

from fedjax_ht.lab.command import main

if __name__ == "__main__":
    main()
