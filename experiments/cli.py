"""What the command lines share: one line for every mistake, exit code 2."""

import sys
from typing import NoReturn

from absl import flags

QUOTES = "'\""


def fail(error: Exception, code: int = 2) -> NoReturn:
    """Prints the error as one line and exits with a code: 2 for what was wrong from the start."""
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(code)


def parse_flags(arguments: list[str]) -> list[str]:
    """Parses the command line; a mistake in it, or in a config file or override that it names, is one line."""
    quiet = "--verbosity=-1"  # warnings only: orbax and jax narrate at INFO, which a user's own --verbosity=0 shows
    try:
        rest = flags.FLAGS([arguments[0], quiet, *arguments[1:]])
    except (KeyError, AttributeError) as error:  # ml_collections' "no such field", with what comes near
        fail(ValueError(f"unknown config field {str(error.args[0]).strip(QUOTES)}"))
    except (flags.Error, ValueError, TypeError, OSError, ImportError, SyntaxError) as error:
        message = str(error).strip()
        if "Traceback" in message:  # what a config file raised
            message = message.splitlines()[-1].partition(": ")[2].strip(QUOTES)
        fail(ValueError(message))
    if len(rest) > 1:
        fail(ValueError(f"unexpected argument {rest[1]!r}; flags are written --name=value"))
    return rest
