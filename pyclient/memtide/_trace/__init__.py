"""Traces that the daemon records: as Python values, as files, in words, and for Perfetto."""
