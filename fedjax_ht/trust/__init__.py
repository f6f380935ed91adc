"""Attacks on federated training, defences against them, and differential privacy and its cost."""
