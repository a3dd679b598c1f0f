"""The Kubernetes API's objects as values: what each says, and the patch that changes it. Pure."""
