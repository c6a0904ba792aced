"""Checkpoint files: whole or not there, whatever writes beside; and their hash is checked."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import memtide
import pytest
import torch
from memtide._checkpoint import whole_file
from memtide._checkpoint.safetensors_file import Checkpoint, Entry, entries_of
from memtide._checkpoint.whole_file import written_whole
from memtide.errors import DataLoss

_ZEROS = b"0" * 64


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "odd": torch.tensor([True, False, True]),
        "weight": torch.randn(5, 7),
        "half": torch.randn(3).to(torch.bfloat16),
        "none": torch.empty(0, 4),
        "step": torch.tensor(7),
    }


def save(path: Path, content: dict[str, torch.Tensor]) -> None:
    checkpoint = Checkpoint(path, entries_of(content.items(), lambda _: False))
    checkpoint.write(lambda _address, _size: iter(()))
    assert checkpoint.wait(0)


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_what_was_written_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save(path, tensors())
    assert equal(memtide.load_checkpoint(path), tensors())
    content = path.read_bytes()
    (digest,) = re.findall(b'"memtide_sha256": "([0-9a-f]{64})"', content)
    assert hashlib.sha256(content.replace(digest, _ZEROS)).hexdigest().encode() == digest


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save(path, {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(1)})
    content = bytearray(path.read_bytes())
    for bit in range(len(content) * 8):
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with pytest.raises(DataLoss, match=str(path)):
            memtide.load_checkpoint(path)
        content[bit // 8] ^= 1 << bit % 8


def test_a_file_of_any_other_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save(path, {"weight": torch.ones(4)})
    content = path.read_bytes()
    for length in [*range(len(content)), len(content) + 1]:
        path.write_bytes((content + b"x")[:length])
        with pytest.raises(DataLoss):
            memtide.load_checkpoint(path)


def hashed(header: dict[str, object], content: bytes) -> bytes:
    """A file with such a header, and a valid hash."""
    header = {"__metadata__": {"memtide_sha256": "0" * 64}, **header}
    text = json.dumps(header).encode()
    file = len(text).to_bytes(8, "little") + text + content
    return file.replace(_ZEROS, hashlib.sha256(file).hexdigest().encode(), 1)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]},
        {"dtype": "F32", "shape": [1 << 60, 1 << 60], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0]},
        {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]},
        {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1]},
        ["F32"],
    ],
)
def test_a_header_that_lies_is_refused_although_its_hash_is_right(
    entry: object, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    good = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    path.write_bytes(hashed({"a": good}, bytes(4)))
    assert equal(memtide.load_checkpoint(path), {"a": torch.zeros(1)})
    path.write_bytes(hashed({"a": entry}, bytes(4)))
    with pytest.raises(DataLoss):
        memtide.load_checkpoint(path)


def test_a_file_without_a_hash_is_refused_and_says_what_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    text = b'{"__metadata__":{"format":"pt"}}'
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(DataLoss, match="safetensors.torch.load_file reads files without a check"):
        memtide.load_checkpoint(path)


def test_two_checkpoints_to_one_path_leave_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    first_began, second_ended = threading.Event(), threading.Event()

    def blocks(_address: int, size: int) -> Iterator[bytes]:
        first_began.set()
        assert second_ended.wait(60)
        yield bytes(size)

    slow = Checkpoint(path, [Entry("slow", torch.zeros(4), address=1)])
    writer = threading.Thread(target=slow.write, args=(blocks,))
    writer.start()
    assert first_began.wait(60)
    save(path, tensors())
    assert equal(memtide.load_checkpoint(path), tensors())
    second_ended.set()
    writer.join()
    assert slow.wait(0)
    assert equal(memtide.load_checkpoint(path), {"slow": torch.zeros(4)})
    assert list(tmp_path.iterdir()) == [path]


def test_planted_names_and_links_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, victim = tmp_path / "a", tmp_path / "victim"
    victim.write_bytes(b"content")
    (tmp_path / "a.part").symlink_to(victim)
    path.symlink_to(victim)
    words = iter(["planted", "free"])
    monkeypatch.setattr(whole_file.secrets, "token_hex", lambda _: next(words))
    (tmp_path / ".a.planted.part").symlink_to(victim)
    with pytest.raises(FileExistsError):
        save(path, tensors())
    assert victim.read_bytes() == b"content"
    assert path.is_symlink()
    save(path, tensors())
    assert victim.read_bytes() == b"content"
    assert equal(memtide.load_checkpoint(path), tensors())


def test_the_file_is_durable_before_it_has_its_name_and_the_name_is_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        done.append("fsync of the directory" if target == tmp_path else "fsync of the file")
        if target != tmp_path:
            content = target.read_bytes()
            assert _ZEROS not in content, "the hash is written before"
        fsync(descriptor)

    def recorded_replace(*arguments: str, **more: int) -> None:
        done.append("rename")
        replace(*arguments, **more)

    monkeypatch.setattr(whole_file.os, "fsync", recorded_fsync)
    monkeypatch.setattr(whole_file.os, "replace", recorded_replace)
    save(path, tensors())
    assert done == ["fsync of the file", "rename", "fsync of the directory"]


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_an_error_leaves_the_old_file_and_no_other(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    save(path, tensors())

    def full(*_arguments: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    if failing == "write":
        monkeypatch.setattr(Checkpoint, "_write_entry", full)
    else:
        monkeypatch.setattr(whole_file.os, failing, full)
    with pytest.raises(OSError, match="No space left"):
        save(path, {"other": torch.ones(3)})
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [path]
    assert equal(memtide.load_checkpoint(path), tensors())


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a"
    killed = (
        "import os, sys\nfrom pathlib import Path\n"
        "from memtide._checkpoint.whole_file import written_whole\n"
        "with written_whole(Path(sys.argv[1])) as file:\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", killed, path], check=False)
    assert done.returncode == -9
    (left,) = tmp_path.iterdir()
    other = tmp_path / ".b.0123456789abcdef.part"
    other.touch()
    with written_whole(path) as file:
        assert not left.exists()
        file.write(b"whole")
    assert path.read_bytes() == b"whole"
    assert set(tmp_path.iterdir()) == {path, other}


def test_a_writer_whose_file_was_taken_for_abandoned_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = whole_file.fcntl.flock, []

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            removed[0].unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(whole_file.fcntl, "flock", remove_first)
    with written_whole(tmp_path / "a") as file:
        file.write(b"whole")
    assert len(removed) == 1
    assert (tmp_path / "a").read_bytes() == b"whole"


def test_the_longest_name_that_a_file_can_have_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127)
    save(path, tensors())
    assert equal(memtide.load_checkpoint(path), tensors())
