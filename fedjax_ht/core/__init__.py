"""The interface of methods, and how a round runs them on its clients."""
