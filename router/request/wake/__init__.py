"""Requests for models without an instance: they wait while one is started."""
