"""Turns configs into objects: entries of a comparison, federation, data, methods, run folder."""
