"""The configs that come with the library: `--config=quickstart` is quickstart.py here."""

from pathlib import Path


def shipped() -> dict[str, Path]:
    """Returns the name of each config -> its file."""
    files = {file.stem: file for file in sorted(Path(__file__).parent.glob("[!_]*.py"))}
    del files["base"]  # the fields of all configs, no experiment
    return files
