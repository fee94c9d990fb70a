"""The errors llmtrace raises on purpose.

::

    LlmtraceError            anything below
    ├── ConfigError          a setting has a value that cannot be used
    ├── SourceError          a recorded file cannot be read
    ├── PolicyError          a policy is not one
    ├── SendError            a backend does not take what is sent to it
    └── MissingExtraError    a command needs a package that is not installed

None of these reaches an application through ``generate()``: failures of telemetry are caught in
``llmtrace.guard``.
"""


class LlmtraceError(Exception):
    """Base of every error llmtrace raises; the message says what, where and what to do."""


class ConfigError(LlmtraceError):
    """A setting, given as an argument or a variable, has a value that cannot be used."""


class SourceError(LlmtraceError):
    """A recorded file cannot be read, or holds no traces of ours."""


class PolicyError(LlmtraceError):
    """A policy holds something that is not a rule; the message names key and place."""


class SendError(LlmtraceError):
    """A backend cannot be reached, or refuses what is sent to it."""


class MissingExtraError(LlmtraceError):
    """A command needs a package from one of llmtrace's extras."""
