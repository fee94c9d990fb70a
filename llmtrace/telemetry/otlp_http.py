"""Sending spans over OTLP/HTTP, with retries within bounds."""

from __future__ import annotations

import gzip
import http.client
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from llmtrace.errors import SendError

PATH = "/v1/traces"

ATTEMPTS = 5
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
"""A backend may ask for more; then it is too busy for us."""

RETRIED = (429, 502, 503, 504)
"""Answers after which OTLP tells clients to try again."""

_SHOWN = 200
"""Characters of a backend's answer that a message repeats."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET, without the spans."""

    def redirect_request(self, *_args: object, **_kwargs: object) -> None:
        return None


def endpoint(url: str) -> str:
    """Return where traces go at the backend *url*.

    Raises:
        SendError: It is no HTTP address.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        has_user = "@" in parts.netloc
    except ValueError:
        good = has_user = False
    if has_user:
        # A password is not repeated where others may read it.
        raise SendError(
            "the address must not hold a user's name or password: put what the backend asks for "
            "into OTEL_EXPORTER_OTLP_HEADERS"
        )
    if not good or any(c.isspace() or not c.isprintable() for c in url):
        raise SendError(f"{url!r} is no address of OTLP over HTTP, such as http://localhost:4318")
    return url if url.rstrip("/").endswith(PATH) else url.rstrip("/") + PATH


@dataclass(frozen=True)
class _NotNow:
    """The backend may take it later."""

    reason: str
    wait_s: float = 0.0


class Sender:
    """Posts messages to one backend."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = endpoint(url)
        self.retries = 0
        self._headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
            "User-Agent": "llmtrace",
            **(headers or {}),
        }
        self._timeout_s = timeout_s
        self._wait = wait
        self._opener = urllib.request.build_opener(_NoRedirect)

    def send(self, message: ExportTraceServiceRequest) -> tuple[int, str]:
        """Send *message*; return how many of its spans were rejected, and why.

        Raises:
            SendError: The backend cannot be reached, or does not take it, after
                :data:`ATTEMPTS` attempts where trying again may help.
        """
        body = gzip.compress(message.SerializeToString(), 5)
        for attempt in range(1, ATTEMPTS + 1):
            answer = self._post(body)
            if isinstance(answer, bytes):
                return _rejected(answer)
            if attempt == ATTEMPTS or answer.wait_s > LONGEST_WAIT_S:
                tried = f"{attempt} attempts" if attempt > 1 else "1 attempt"
                raise SendError(f"{self.url}: {answer.reason} ({tried})")
            self.retries += 1
            backoff = FIRST_WAIT_S * 2 ** (attempt - 1) * random.uniform(0.8, 1.2)  # noqa: S311
            self._wait(max(answer.wait_s, backoff))
        raise AssertionError("the last attempt returns or raises")

    def _post(self, body: bytes) -> bytes | _NotNow:
        """Return the backend's answer, or that it may take it later."""
        request = urllib.request.Request(self.url, body, self._headers)  # noqa: S310 - see endpoint
        try:
            with self._opener.open(request, timeout=self._timeout_s) as reply:
                return bytes(reply.read())
        except urllib.error.HTTPError as error:
            answer = " ".join(error.read(_SHOWN).decode(errors="replace").split())
            said = _printable(f"{error.code} {error.reason}" + (f": {answer}" if answer else ""))
            if error.code in RETRIED:
                return _NotNow(said, _seconds(error.headers.get("Retry-After")))
            raise SendError(f"{self.url}: {said}") from None
        except (http.client.HTTPException, ValueError) as error:
            # A gRPC port answers with what is no HTTP/1.1.
            said = _printable(str(error) or type(error).__name__)
            raise SendError(
                f"{self.url}: does not speak HTTP ({said}); OTLP over HTTP is mostly at port 4318"
            ) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            return _NotNow(_printable(str(getattr(reason, "strerror", None) or reason)))


def _rejected(answer: bytes) -> tuple[int, str]:
    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:
        # Some backends answer with text; the status said that all is well.
        return 0, ""
    return partial.rejected_spans, _printable(partial.error_message)


def _seconds(header: str | None) -> float:
    try:
        return max(float(header or 0), 0.0)
    except ValueError:
        return 0.0


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
