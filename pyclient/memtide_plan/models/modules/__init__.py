"""A model from modules of torch whose parameters have no memory: they are on the meta device."""
