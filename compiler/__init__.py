"""From a model to an artifact."""
