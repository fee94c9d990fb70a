"""Files, folders and standard input as lines, unpacked on the way."""

from __future__ import annotations

import gzip
import importlib
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from llmtrace.errors import MissingExtraError, SourceError

STANDARD_INPUT = "-"

OnBytes = Callable[[int], None]
"""Called now and then with how many bytes of the input have been read."""

_ENDINGS = tuple(name + packed for name in (".jsonl", ".json") for packed in ("", ".gz", ".zst"))
_PROTOBUF = b"\n"
"""How OTLP begins as protobuf: field 1, resourceSpans."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_CHUNK_BYTES = 1 << 17

_NO_PROTOBUF = (
    "holds OTLP as protobuf, and only OTLP/JSON is read: set format: json in the collector's file "
    "exporter"
)


class DamagedInputError(Exception):
    """The input breaks off or cannot be unpacked any further; what came before is good."""


def find_files(path: str) -> list[str]:
    """Return *path*, or the trace files under it where it is a folder.

    Raises:
        SourceError: There is no such file, or the folder holds no trace file.
    """
    if path == STANDARD_INPUT:
        return [path]
    place = Path(path)
    if not place.is_dir():
        if not place.exists():
            raise SourceError(f"{path}: no such file")
        return [path]
    found = sorted(str(p) for p in place.rglob("*") if p.name.endswith(_ENDINGS) and p.is_file())
    if not found:
        raise SourceError(f"{path}: no .jsonl or .json file (also .gz, .zst) in this folder")
    return found


def read_lines(path: str, on_bytes: OnBytes | None = None) -> Iterator[bytes]:
    """Yield the lines of a file, plain, gzip or zstd: its first bytes tell which.

    Raises:
        SourceError: It cannot be opened.
        MissingExtraError: It is zstd, and there is no package to unpack it.
        DamagedInputError: It breaks off; raised after the lines that could be read.
    """
    with _open(path) as file:
        start = file.peek(8)[:8]
        try:
            for line in _unpacked(path, file, start):
                yield line
                if on_bytes is not None:
                    on_bytes(file.tell() if file.seekable() else 0)
        except EOFError:
            raise DamagedInputError("the compressed file breaks off here") from None
        except (OSError, zlib.error) as error:
            raise DamagedInputError(f"cannot be read any further: {error}") from None


def _open(path: str) -> io.BufferedReader:
    try:
        if path == STANDARD_INPUT:
            # Closing the file must leave the program's standard input open.
            return open(sys.stdin.fileno(), "rb", closefd=False)
        return Path(path).open("rb")
    except (OSError, AttributeError) as error:  # without standard input, sys.stdin is None
        reason = getattr(error, "strerror", None) or "cannot be read"
        raise SourceError(f"{path}: {reason}") from None


def _unpacked(path: str, file: io.BufferedReader, start: bytes) -> Iterator[bytes]:
    if start.startswith(_GZIP):
        return iter(gzip.GzipFile(fileobj=file))
    if start.startswith(_ZSTD):
        return _zstd_stream(file, _zstandard(path))
    # The collector's file exporter puts the length, four bytes, before each message that it packs
    # or that is no JSON; and no text begins with a zero byte.
    if start[4:] == _ZSTD:
        return _zstd_messages(file, _zstandard(path))
    if start[:1] == b"\0" and start[4:5] == _PROTOBUF:
        raise DamagedInputError(_NO_PROTOBUF)
    return iter(file)


def _zstandard(path: str) -> Any:
    try:
        return importlib.import_module("zstandard")
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"{path}: reading zstd needs zstandard: pip install 'llmtrace[report]'"
        ) from None


def _zstd_stream(file: IO[bytes], zstandard: Any) -> Iterator[bytes]:
    # Frame by frame, because the package's own reader takes a frame cut off for its end.
    frame = None
    line = b""
    while packed := file.read(_CHUNK_BYTES):
        while packed:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                line += frame.decompress(packed)
            except zstandard.ZstdError as error:
                raise OSError(str(error)) from None
            packed = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
        *lines, line = line.split(b"\n")
        yield from (whole + b"\n" for whole in lines)
    if line:
        yield line
    if frame is not None:
        raise EOFError


def _zstd_messages(file: IO[bytes], zstandard: Any) -> Iterator[bytes]:
    while prefix := file.read(4):
        length = int.from_bytes(prefix, "big")
        packed = file.read(length)
        if len(packed) < length:
            raise EOFError
        try:
            message = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        if message.startswith(_PROTOBUF) and not message.lstrip().startswith(b"{"):
            raise DamagedInputError(_NO_PROTOBUF)
        yield message + b"\n"
