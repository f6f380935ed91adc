"""Optional packages, which `import fedjax_ht` does not need, and the extras that install them."""

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Package(NamedTuple):
    """A package that only some functions need.

    Attributes:
      name: the package's name for pip.
      extra: the extra of fedjax_ht that installs it, as in pyproject.toml.
    """

    name: str
    extra: str


PACKAGES = {
    "matplotlib": Package("matplotlib", "run"),
    "PIL": Package("pillow", "run"),
    "scipy": Package("scipy", "run"),
    "tqdm": Package("tqdm", "run"),
    "flwr": Package("flwr", "flower"),
    "dp_accounting": Package("dp-accounting", "privacy"),
    "safetensors": Package("safetensors", "weights"),
    "tokenizers": Package("tokenizers", "text"),
    "datasets": Package("datasets", "hf"),
    "diffusers": Package("diffusers", "diffusion"),
    "torch": Package("torch", "diffusion"),
    "tensorboard": Package("tensorboard", "tensorboard"),
    "wandb": Package("wandb", "wandb"),
    "mlflow": Package("mlflow", "mlflow"),
    "ray": Package("ray", "ray"),
}
"""Module name -> package."""


@contextlib.contextmanager
def needing(purpose: str) -> Iterator[None]:
    """Turns a missing package inside the block into an error that names the extra to install.

    Args:
      purpose: the feature that needs the package; the message begins with it.

    Raises:
      ImportError: the package is one of `PACKAGES`. One line.

    Example:
      >>> with needing("privacy"):  # doctest: +SKIP
      ...     import dp_accounting
      ImportError: privacy needs dp-accounting; run pip install 'fedjax_ht[privacy]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in PACKAGES:
            raise
        raise _missing(purpose, [PACKAGES[module]]) from error


def require(purpose: str, extra: str) -> None:
    """Checks that all packages of an extra are installed, without importing them.

    Args:
      purpose: the feature that needs the packages; the message begins with it.
      extra: the name of an extra of fedjax_ht.

    Raises:
      ImportError: packages are missing. One line that lists them.
    """
    missing = []
    for module, package in PACKAGES.items():
        if package.extra == extra and importlib.util.find_spec(module) is None:
            missing.append(package)
    if missing:
        raise _missing(purpose, missing)


def _missing(purpose: str, packages: Sequence[Package]) -> ImportError:
    names = ", ".join(package.name for package in packages)
    return ImportError(f"{purpose} needs {names}; run pip install 'fedjax_ht[{packages[0].extra}]'")
