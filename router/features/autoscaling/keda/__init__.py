"""KEDA's external scaler: how many instances are wanted, and that requests wait for a model, over gRPC."""
