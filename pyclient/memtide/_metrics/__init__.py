"""The process that serves the metrics of the node's daemon over HTTP."""
