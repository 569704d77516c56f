"""Methods that compare or decode hidden states, with no gradient and no change of the run."""
