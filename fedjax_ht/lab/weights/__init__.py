"""Weights from files: Hugging Face folders, torchvision's names, safetensors."""
