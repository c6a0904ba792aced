"""A folder that `memtide run` adds to PYTHONPATH, so that torch finds memtide in processes that the
script starts."""
