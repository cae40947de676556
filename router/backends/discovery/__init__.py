"""Sources of the list of instances (the configuration, a file, DNS, Kubernetes), and how their lists are merged."""
