"""What the command lines share: one line for every mistake, exit code 2."""

import sys
from typing import NoReturn

from absl import flags


def fail(error: Exception) -> NoReturn:
    """Prints the error as one line and exits with code 2."""
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)


def parse_flags(arguments: list[str]) -> list[str]:
    """Parses the command line; a mistake in it, or in a config file or override that it names, is one line."""
    quiet = "--verbosity=-1"  # warnings only: orbax and jax narrate at INFO, which a user's own --verbosity=0 shows
    try:
        rest = flags.FLAGS([arguments[0], quiet, *arguments[1:]])
    except (flags.Error, ValueError, TypeError, AttributeError, KeyError, OSError, ImportError, SyntaxError) as error:
        fail(error)
    if len(rest) > 1:
        fail(ValueError(f"unexpected argument {rest[1]!r}; flags are written --name=value"))
    return rest
