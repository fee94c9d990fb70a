"""Findings whose title and remedy are the same for every request: a span holds only their codes."""

from __future__ import annotations

from llmtrace.records import Finding

TOKENS_FROM_FORWARDS = Finding(
    "tokens_from_forwards",
    "info",
    "Tokens were counted by forward calls",
    "",
    "Call token() on the request where your code has selected a token.",
)
STEPS_TRUNCATED = Finding(
    "steps_truncated",
    "info",
    "Only the first steps were recorded singly",
    "",
    "Raise max_step_spans (LLMTRACE_MAX_STEP_SPANS).",
)
STEPS_NOT_SEEN = Finding(
    "steps_not_seen",
    "info",
    "The request's steps were not seen",
    "Tokens were returned, but no decoding step ran where the request did.",
    "Nothing: another thread's steps serve several requests at once.",
)
FORWARDS_NOT_SEEN = Finding(
    "forwards_not_seen",
    "info",
    "Tokens were marked without a forward call",
    "token() was called, and no call of the model was this request's.",
    "Run the model's calls under llmtrace.request.active(request).",
)
TOKENS_FROM_STEPS = Finding(
    "tokens_from_steps",
    "info",
    "Tokens were counted by steps",
    "The model's generate() returned no token ids.",
    "Nothing: a row that ended before the others counts as many tokens as they.",
)
ROWS_NOT_TOLD_APART = Finding(
    "rows_not_told_apart",
    "info",
    "Tokens are known in total only",
    "The request ran several loops over different numbers of rows.",
    "Nothing: which row got which tokens is known to the model's generate() alone.",
)
CACHED_TOKENS_UNKNOWN = Finding(
    "cached_tokens_unknown",
    "info",
    "How full the cache handed in was is not known",
    "Only the device knows; asking it would make the program wait.",
    "Nothing: input tokens are counted, those in the cache are not told apart.",
)
SLOW_CONSUMER = Finding(
    "slow_consumer",
    "warning",
    "The consumer took text late; the model was not slow",
    "",
    "Look at what the reader of the streamer does between two items (log I/O, a slow client, a "
    "blocked event loop behind a thread pool) and move it into another thread or task; where "
    "clients leave, end generate() with a stopping criterion.",
)
EVENT_LOOP_BLOCKED = Finding(
    "event_loop_blocked",
    "warning",
    "The event loop was blocked; the model was not slow",
    "",
    "Run generate(), tokenizing and blocking I/O in threads (asyncio.to_thread, run_in_executor, a "
    "plain def endpoint), never in the event loop's.",
)
PREEMPTED = Finding(
    "preempted",
    "warning",
    "The scheduler put requests back into its queue",
    "The KV cache was full: what a request had there was dropped or moved, and made again.",
    "Give the cache more blocks (num_blocks, max_memory_percent) or admit fewer requests at once.",
)
BATCH_STOPPED = Finding(
    "batch_stopped",
    "error",
    "The scheduler stopped with requests in its queue",
    "Its loop ended and said nothing of these requests, or never ran.",
    "Stop the manager after the last result; the log of transformers says what ended its loop.",
)
REQUEST_ID_REUSED = Finding(
    "request_id_reused",
    "error",
    "A request came under the id of one that was under way",
    "The scheduler knows requests by their id, and forgot the first.",
    "Give each request an id of its own, or none.",
)
NEVER_ENDED = Finding(
    "never_ended",
    "warning",
    "A request was started and never ended",
    "Nobody holds its object any more, and end() was not called: it was taken to end there.",
    "Call end() wherever a request leaves the scheduler, also where it fails.",
)

MBU_ABOVE_ONE = Finding(
    "mbu_above_one",
    "warning",
    "Decoding seems to use more bandwidth than the device has",
    "",
    "Check the device's peak (llmtrace peaks) and whether the model reads all its weights.",
)
MFU_ABOVE_ONE = Finding(
    "mfu_above_one",
    "warning",
    "The prefill seems to do more operations than the device can",
    "",
    "Check the device's peak (llmtrace peaks); a cache that holds the prompt already does this.",
)

KNOWN = {
    finding.code: finding
    for finding in (
        TOKENS_FROM_FORWARDS,
        STEPS_TRUNCATED,
        STEPS_NOT_SEEN,
        TOKENS_FROM_STEPS,
        ROWS_NOT_TOLD_APART,
        CACHED_TOKENS_UNKNOWN,
        MBU_ABOVE_ONE,
        MFU_ABOVE_ONE,
        FORWARDS_NOT_SEEN,
        SLOW_CONSUMER,
        EVENT_LOOP_BLOCKED,
        PREEMPTED,
        BATCH_STOPPED,
        REQUEST_ID_REUSED,
        NEVER_ENDED,
    )
}
