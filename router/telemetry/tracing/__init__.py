"""OpenTelemetry traces: whose trace a request belongs to, its spans once it has ended, and their export."""
