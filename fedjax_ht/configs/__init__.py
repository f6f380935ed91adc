"""The configs that come with the library: `--config=quickstart` is quickstart.py here."""

from pathlib import Path


def shipped() -> dict[str, Path]:
    """Name of each -> its file."""
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    return {file.stem: file for file in files if file.stem != "base"}
