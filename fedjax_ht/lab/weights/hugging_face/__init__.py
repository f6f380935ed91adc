"""Extractors of Hugging Face's folders: BERT, ViT, GPT-2 and Llama by their config.json, and their
arrays by the names that its files have."""
