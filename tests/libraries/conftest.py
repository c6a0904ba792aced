"""Keeps the libraries offline: one that would download a model fails instead."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
