"""Methods that read gradients."""
