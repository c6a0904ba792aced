"""The sources from which `memtide plan` reads a model: a Hugging Face config.json (config.py), a
script that trains it (script.py), or the trace of a run (trace.py); source.py decides which one it
is.
"""
