"""Frozen pre-trained image generators, opened from a path."""

from pathlib import Path

from fedjax_ht.generators import npz
from fedjax_ht.generators.base import Card, Generator

__all__ = ["Card", "Generator", "open_generator"]


def open_generator(path: str | Path) -> Generator:
    """The generator at `path`, whatever its kind.

    Args:
      path: a StyleGAN3 or StyleGAN-XL snapshot (.pkl); what `generators.convert` wrote, or an embedded generator (both
        .npz); or a folder of Stable Diffusion with the sub-folders unet and vae.

    Raises:
      FileNotFoundError: there is nothing at `path`.
      ImportError: a folder of Stable Diffusion, and its packages are not installed.
      ValueError: the file is damaged or of another kind. One line.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no generator at {path}")
    # Each kind is imported when it is needed: diffusion brings torch.
    if path.is_dir():
        if not (path / "unet").is_dir() or not (path / "vae").is_dir():
            raise ValueError(f"{path}: a folder without unet and vae; expected those of Stable Diffusion")
        from fedjax_ht.generators.diffusion import load_diffusion

        return load_diffusion(path)
    if path.suffix == ".pkl":
        from fedjax_ht.generators.stylegan3_files import load_snapshot

        return load_snapshot(path)
    if path.suffix != ".npz":
        raise ValueError(f"{path}: expected a .pkl snapshot, a .npz, or a folder with unet and vae")
    kind = npz.read(path, arrays=False)[0]["format"]
    if kind == "stylegan3":
        from fedjax_ht.generators.stylegan3_files import load_converted

        return load_converted(path)
    if kind == "embedded":
        from fedjax_ht.generators.embedded import load_embedded

        return load_embedded(path)
    raise ValueError(f"{path}: holds a generator of format {kind!r}; expected stylegan3 or embedded")
