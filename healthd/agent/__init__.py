"""One node's agent, put together from its configuration: the observer, the store and the engine that acts."""
