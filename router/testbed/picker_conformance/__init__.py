"""The conformance suite for endpoint pickers: plays the data plane (an Envoy) to a picker, over gRPC, and reports.

Every clause of the endpoint picker protocol 1.0.0 is a numbered case in `cases/`. The suite knows nothing of the picker
but its address: it learns the model and the endpoints by asking.
"""
