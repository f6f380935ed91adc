"""The configs that come with the library: `--config=quickstart` is quickstart.py here."""

from pathlib import Path

NO_CONFIGS = ("base", "run_sections", "sections", "typed", "former_names")


def shipped() -> dict[str, Path]:
    """Returns the file of each shipped config, by its name."""
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    return {file.stem: file for file in files if file.stem not in NO_CONFIGS}
