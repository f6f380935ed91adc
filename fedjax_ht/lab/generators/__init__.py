"""Frozen pre-trained image generators, opened from a path."""

from pathlib import Path

from fedjax_ht.check.options import checked
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.core.user_code import call_user_function, names_user_function
from fedjax_ht.models.generator import Card, Generator

__all__ = ["SHIPPED", "Card", "Generator", "open_generator"]

SHIPPED = {file.stem: file for file in sorted((Path(__file__).parent / "shipped").glob("*.npz"))}
"""Generators in the library, by name; each has a card (.md) beside it."""


@checked
@standard_numerics()
def open_generator(path: str | Path) -> Generator:
    """Opens a generator of any kind.

    Args:
      path: name of a shipped generator, "fashion_mnist_32", "fashion_mnist_classes_32" or
        "natural_32"; "module:function", a function of yours in the current folder or an installed
        module; or the path of a StyleGAN3 or StyleGAN-XL snapshot (.pkl), an embedded generator
        (.npz), or a Stable Diffusion folder with the sub-folders unet and vae.

    Returns:
      The generator, with a card of its origin.

    Raises:
      FileNotFoundError: `path` does not exist.
      ImportError: the packages for a Stable Diffusion folder are not installed.
      ValueError: the file is damaged or of another kind, or the function does not return a
        generator. One line.

    Example:
      >>> import jax
      >>> import fedjax_ht as fl
      >>> generator = fl.generators.open_generator("fashion_mnist_32")
      >>> generator.card.trained_on
      ('fashion_mnist', 'fashion_mnist_10k')
      >>> w = generator.sample_w(generator.variables, jax.random.key(0), 2)
      >>> generator.synthesize(generator.variables, w).shape
      (2, 32, 32, 3)
    """
    name = str(path)  # before `Path` turns "./mine:make", which names a file, into "mine:make"
    path = SHIPPED.get(name, Path(path))
    if names_user_function(name) and not path.exists():
        return _users_generator(name)
    if not path.exists():
        raise FileNotFoundError(
            f"no generator at {path}; the library's own are named without a folder: "
            f"{', '.join(SHIPPED)}"
        )
    # Each kind is imported only when needed: diffusion imports torch.
    if path.is_dir():
        if not (path / "unet").is_dir() or not (path / "vae").is_dir():
            raise ValueError(
                f"{path}: a folder without unet and vae; expected those of Stable Diffusion"
            )
        from fedjax_ht.lab.generators.diffusion import load_diffusion

        return load_diffusion(path)
    if path.suffix == ".pkl":
        from fedjax_ht.lab.generators.stylegan3_files import load_snapshot

        return load_snapshot(path)
    if path.suffix == ".npz":
        from fedjax_ht.lab.generators.embedded import load_embedded

        return load_embedded(path)
    raise ValueError(f"{path}: expected a .pkl snapshot, a .npz, or a folder with unet and vae")


def _users_generator(name: str) -> Generator:
    generator = call_user_function("generator", name)
    if not isinstance(generator, Generator):
        raise ValueError(
            f"generator {name!r} returns {type(generator).__name__}; it must return a "
            "fedjax_ht.lab.generators.Generator"
        )
    return generator
