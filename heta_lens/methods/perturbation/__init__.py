"""Methods that remove, replace or restore tokens and see what the prediction does."""
