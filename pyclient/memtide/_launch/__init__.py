"""`memtide run`: runs the script in this process with its states in chunks, and does the same in
the ranks that the script or a launcher starts.
"""
