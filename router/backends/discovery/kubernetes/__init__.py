"""Instances from the pods of a Kubernetes namespace, by list and watch."""
