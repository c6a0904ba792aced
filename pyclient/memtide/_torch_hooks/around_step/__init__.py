"""Hooks around an optimizer's step."""
