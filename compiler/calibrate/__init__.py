"""From data to what is known of a graph's values: readers, streaming collectors, the record, and accuracy on held-out data."""
