"""The version of the running library, which may differ from pip's metadata of an installed copy."""

import sys
from typing import Any


def library_version() -> str:
    """Returns `fedjax_ht.__version__` of the running code."""
    # lower packages do not import the library's top level
    library: Any = sys.modules["fedjax_ht"]
    return library.__version__
