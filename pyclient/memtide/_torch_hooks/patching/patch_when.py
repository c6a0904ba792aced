"""The runs in which a row of the patch table is installed."""

from enum import Enum, auto


class When(Enum):
    """A runtime installs those of the first group. Rows of the second one are installed later, or
    earlier, by the feature that they serve (later_patches.py)."""

    ALWAYS = auto()
    EVERYTHING = auto()  # Everything is adopted: `memtide run`.
    HOST = auto()  # Page faults are answered.
    GPU = auto()  # They are not.
    NO_KERNEL_FAULTS = auto()  # A system call's page faults are not.

    ACTIVATIONS = auto()  # While blocks are rehearsed or recomputed, or the script chooses.
    LAUNCH = auto()  # `memtide run`, also before there is a runtime.
    PLAN = auto()  # `memtide plan SCRIPT`, in the process that runs the script.
