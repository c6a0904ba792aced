"""Hooks that only a GPU needs: it has no page faults, so that operations lease their chunks."""
