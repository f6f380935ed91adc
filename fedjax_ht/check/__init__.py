"""Checks of values: options, names, registrations and optional packages, and their messages."""
