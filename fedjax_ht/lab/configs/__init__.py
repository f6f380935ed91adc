"""Configs that come with the library: `--config=quickstart` is quickstart.py here."""
