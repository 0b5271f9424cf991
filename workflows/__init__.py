"""Ready workflows and experiments (YAML files beside this one)."""
