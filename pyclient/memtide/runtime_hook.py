"""Starting the runtime when the script imports torch. Imports torch only then."""

from __future__ import annotations

from memtide._native import Client
from memtide.importhook import after_import
from memtide.observer import Observer


def install(client: Client, observer: Observer) -> None:
    """Makes torch, when it is imported (or now, if it has been), put states into chunks."""

    def start() -> None:
        from memtide import runtime

        runtime.start(client, observer, adopt_everything=True)

    after_import("torch", start)
