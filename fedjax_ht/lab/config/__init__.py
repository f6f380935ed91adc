"""Fields of a config, config files and their flags."""
