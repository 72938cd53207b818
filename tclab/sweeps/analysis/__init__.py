"""Rows compared with rows, points raced against points, changes advised."""
