"""Methods that read attention patterns and what heads write."""
