"""Rows, and the folder that keeps them."""
