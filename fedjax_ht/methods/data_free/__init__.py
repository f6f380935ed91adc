"""Data-free distillation: DFRD, and DENSE and FedFTG as DFRD runs them."""
