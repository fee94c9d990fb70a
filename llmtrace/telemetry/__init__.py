"""From records to OpenTelemetry: names, spans, metrics, and where they go."""
