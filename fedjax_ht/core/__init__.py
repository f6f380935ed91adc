"""What a method is written against, and how it runs on the clients of one round."""
