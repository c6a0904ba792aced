"""The daemon of a node from a process's view: connecting to it, starting a private one, inspecting
it, and the sessions of named jobs.
"""
