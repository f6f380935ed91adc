"""The laboratory: everything with a file, a folder, a flag or a page. Needs the extra `run`."""

import lazy_loader

__getattr__, __dir__, _ = lazy_loader.attach(__name__, submodules=["generators"])
