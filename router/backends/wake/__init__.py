"""Ways to start an instance of a model: a webhook, a Kubernetes Deployment."""
