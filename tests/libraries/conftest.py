"""No model is fetched: a library that asks a hub for one fails instead."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
