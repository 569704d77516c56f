"""Methods that let the model write on."""
