"""Admission rules: plug-ins that decide which request may begin now, and which one waits."""
