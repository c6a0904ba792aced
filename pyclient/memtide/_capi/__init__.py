"""The C interface (client/memtide.h) through ctypes: finding the library, and calling it."""
