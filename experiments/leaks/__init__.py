"""Attacks that learn about clients from their uploads or models.

`inversion` looks for the images behind an upload, `membership` for a training set's members.
"""
