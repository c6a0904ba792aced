"""Draws the memory of one iteration over time: as an image, or as an HTML page."""
