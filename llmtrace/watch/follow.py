"""Lines as they are appended to files that come, grow, are cut, and are replaced."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from llmtrace.errors import SourceError

TAIL_BYTES = 64 << 20
"""Of what is there already, only so much is read: of the files written to last, their ends."""

MOST_LINE_BYTES = 64 << 20
"""A longer line is passed over: it would be held in memory."""

_CHUNK_BYTES = 1 << 20
_SEEN_BYTES = 64

_ENDINGS = (".jsonl", ".json")
_PACKED = (".gz", ".zst")


class FollowedFile:
    """One file by its name. A line is handed out once it is whole."""

    def __init__(self, path: Path, tail_bytes: int | None = None) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._half = bytearray()
        self._seen = b""
        """What stands just before the place that was read up to: another file has other bytes."""
        self._tail_bytes = tail_bytes
        self._passing_over = False
        self.left_out_bytes = 0
        """Of the file as it was found: what was not read."""

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that have been added since the last time.

        Raises:
            SourceError: The file is there and cannot be read.
        """
        if self._file is not None:
            if self._cut():
                self._restart(0)
            yield from self._rest(self._file)
            if not self._replaced(self._file):
                return
            self.close()
        self._open()
        if self._file is not None:
            yield from self._rest(self._file)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._half.clear()
        self._seen = b""

    def _open(self) -> None:
        try:
            self._file = self._path.open("rb", buffering=0)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceError(f"{self._path}: {error.strerror or 'cannot be read'}") from None
        if self._tail_bytes is not None:
            size = os.fstat(self._file.fileno()).st_size
            self._restart(max(size - self._tail_bytes, 0))
            self._tail_bytes = None

    def _restart(self, position: int) -> None:
        if self._file is not None:
            self._file.seek(position)
        self._half.clear()
        self._seen = b""
        self.left_out_bytes = position
        # In the middle of a line, most likely.
        self._passing_over = position > 0

    def _cut(self) -> bool:
        """Return whether the file lost what was read of it, even if it has grown again since."""
        file = self._file
        if file is None:
            return False
        position = file.tell()
        if os.fstat(file.fileno()).st_size < position:
            return True
        file.seek(position - len(self._seen))
        same = file.read(len(self._seen)) == self._seen
        file.seek(position)
        return not same

    def _replaced(self, file: BinaryIO) -> bool:
        """Return whether another file has the name now. One that is gone may still be written."""
        try:
            now = self._path.stat()
        except OSError:
            return False
        return not os.path.samestat(now, os.fstat(file.fileno()))

    def _rest(self, file: BinaryIO) -> Iterator[bytes]:
        while chunk := file.read(_CHUNK_BYTES):
            self._seen = (self._seen + chunk)[-_SEEN_BYTES:]
            *whole, half = chunk.split(b"\n")
            for part in whole:
                line = bytes(self._half) + part
                self._half.clear()
                if not self._passing_over:
                    yield line
                self._passing_over = False
            self._half += half
            if len(self._half) > MOST_LINE_BYTES:
                self._half.clear()
                self._passing_over = True


class Follower:
    """A file, or the trace files of a folder, those included that come later."""

    def __init__(self, path: str) -> None:
        if path.endswith(_PACKED):
            raise SourceError(f"{path}: a compressed file does not grow: use llmtrace report")
        self._path = Path(path)
        self._files = {p: FollowedFile(p, tail) for p, tail in _tails(self._paths())}

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that have been added since the last time, file by file.

        Raises:
            SourceError: A file is there and cannot be read.
        """
        for path in self._paths():
            self._files.setdefault(path, FollowedFile(path))
        for file in self._files.values():
            yield from file.lines()

    def close(self) -> None:
        """Let go of all files."""
        for file in self._files.values():
            file.close()

    @property
    def exists(self) -> bool:
        """Whether there is anything to read yet."""
        return self._path.exists()

    @property
    def left_out_bytes(self) -> int:
        """What was not read of files that were long already."""
        return sum(file.left_out_bytes for file in self._files.values())

    def _paths(self) -> list[Path]:
        if self._path.is_dir():
            found = self._path.rglob("*")
            return sorted(p for p in found if p.name.endswith(_ENDINGS) and p.is_file())
        return [self._path] if self.exists else []


def _tails(paths: Iterable[Path]) -> list[tuple[Path, int]]:
    """Return how much of the end of each file to read, those written to last at the end."""
    tails = []
    left = TAIL_BYTES
    for _, size, path in sorted(map(_described, paths), reverse=True):
        tails.append((path, min(size, left)))
        left -= min(size, left)
    return tails[::-1]


def _described(path: Path) -> tuple[float, int, Path]:
    try:
        found = path.stat()
    except OSError:
        return 0.0, 0, path
    return found.st_mtime, found.st_size, path
