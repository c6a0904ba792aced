"""Helpers without knowledge of chunks: sizes as text, and calls after an import."""
