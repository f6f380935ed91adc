"""The version of the library that runs, which pip's note of an installed copy may not be."""

import sys
from typing import Any


def library_version() -> str:
    """Returns `fedjax_ht.__version__`, of the code that runs."""
    # packages below do not import the library's own names
    library: Any = sys.modules["fedjax_ht"]
    return library.__version__
