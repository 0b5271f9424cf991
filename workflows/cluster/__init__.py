"""Ready scripts that build stores on clusters."""
