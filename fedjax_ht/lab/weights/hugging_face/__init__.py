"""Extractors from Hugging Face folders (BERT, ViT, GPT-2, Llama), and the names of their arrays."""
