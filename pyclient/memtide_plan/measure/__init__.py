"""Measures what a plan has to know of the machine that this is: `memtide doctor --measure`.

Each module measures one part, for about the seconds that it is given. Nothing is left behind.
"""
