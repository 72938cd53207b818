"""Races between calls: interleaved blocks, a record on disk, and a verdict."""
