"""Everything that uses files, folders, flags or pages. Needs the extra `run`."""

import lazy_loader

__getattr__, __dir__, _ = lazy_loader.attach(__name__, submodules=["generators"])
